import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rlhf_runtime.numerics.advantages import generalized_advantages, rewards_to_go

from ...depth import examples


def quadratic(rewards: Tensor, values: Tensor, gamma: float, lam: float) -> Tensor:
    """The definition for one row without masked tokens: a sum over all later deltas."""
    steps = len(rewards)
    following = torch.cat([values[1:], values.new_zeros(1)])
    deltas = rewards + gamma * following - values
    return torch.stack(
        [
            sum(((gamma * lam) ** (k - t) * deltas[k] for k in range(t, steps)), torch.zeros(()))
            for t in range(steps)
        ]
    )


def batch(seed: int, rows: int, steps: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    rewards = torch.randn(rows, steps, dtype=torch.float64, generator=draw)
    values = torch.randn(rows, steps, dtype=torch.float64, generator=draw)
    return rewards, values, torch.rand(rows, steps, generator=draw) < 0.6


@settings(max_examples=examples(30), deadline=None)
@given(
    st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 9), st.floats(0, 1), st.floats(0, 1)
)
def test_each_row_equals_the_definition_on_its_kept_tokens(
    seed: int, rows: int, steps: int, gamma: float, lam: float
) -> None:
    rewards, values, mask = batch(seed, rows, steps)
    advantages, returns = generalized_advantages(rewards, values, mask, gamma, lam)
    for row in range(rows):
        kept = mask[row]
        expected = torch.zeros(steps, dtype=torch.float64)
        if kept.any():
            expected[kept] = quadratic(rewards[row, kept], values[row, kept], gamma, lam)
        torch.testing.assert_close(advantages[row], expected)
        torch.testing.assert_close(returns[row], torch.where(kept, expected + values[row], 0.0))


def test_hand_computed_two_tokens() -> None:
    advantages, returns = generalized_advantages(
        torch.tensor([[0.0, 1.0]]),
        torch.tensor([[0.5, 0.25]]),
        torch.ones(1, 2, dtype=torch.bool),
        1.0,
        0.5,
    )
    assert advantages.tolist() == [[0.125, 0.75]]  # -0.25 + 0.5 * 0.75, 1 - 0.25
    assert returns.tolist() == [[0.625, 1.0]]


@pytest.mark.parametrize("lam", [0.0, 1.0])
def test_the_extremes_are_one_step_errors_and_rewards_to_go(lam: float) -> None:
    rewards, values, _ = batch(0, 3, 6)
    mask = torch.ones(3, 6, dtype=torch.bool)
    _, returns = generalized_advantages(rewards, values, mask, 1.0, lam)
    if lam == 1.0:
        expected = rewards.flip(1).cumsum(1).flip(1)
    else:
        expected = rewards + torch.cat([values[:, 1:], torch.zeros(3, 1)], dim=1)
    torch.testing.assert_close(returns, expected)


def test_values_of_masked_tokens_do_not_matter() -> None:
    rewards, values, mask = batch(3, 4, 8)
    garbage = torch.where(mask, values, torch.nan)
    expected = generalized_advantages(rewards, values, mask, 0.9, 0.9)
    got = generalized_advantages(torch.where(mask, rewards, torch.nan), garbage, mask, 0.9, 0.9)
    assert torch.equal(got[0], expected[0])
    assert torch.equal(got[1], expected[1])


def test_no_gradient_flows_into_the_critic() -> None:
    values = torch.zeros(1, 3, requires_grad=True)
    advantages, returns = generalized_advantages(
        torch.ones(1, 3), values, torch.ones(1, 3, dtype=torch.bool), 1.0, 1.0
    )
    assert not advantages.requires_grad
    assert not returns.requires_grad


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 9), st.floats(0, 1))
def test_rewards_to_go_are_advantages_over_values_of_zero(
    seed: int, rows: int, steps: int, gamma: float
) -> None:
    rewards, _, mask = batch(seed, rows, steps)
    expected, _ = generalized_advantages(rewards, torch.zeros_like(rewards), mask, gamma, 1.0)
    torch.testing.assert_close(rewards_to_go(rewards, mask, gamma), expected)


def test_hand_computed_rewards_to_go_skip_masked_tokens() -> None:
    mask = torch.tensor([[True, False, True, True]])
    got = rewards_to_go(torch.tensor([[1.0, torch.nan, 2.0, 4.0]]), mask, 0.5)
    assert got.tolist() == [[3.0, 0.0, 4.0, 4.0]]
