"""What constraints weigh."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.numerics.advantages import learned_multiplier, penalized_advantages


def scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def test_the_multiplier_goes_up_its_gradient_on_a_log_scale() -> None:
    """d/d(log m) of m (cost - limit), by autograd, of the rows that have a cost."""
    costs, valid = torch.tensor([1.0, 3.0, 99.0]), torch.tensor([True, True, False])
    log_multiplier = scalar(math.log(0.4)).requires_grad_()
    torch.autograd.backward(log_multiplier.exp() * (costs[:2].mean() - 0.5))
    assert log_multiplier.grad is not None
    expected = (log_multiplier.detach() + 0.1 * log_multiplier.grad).exp()
    found = learned_multiplier(
        scalar(0.4), costs, valid, limit=0.5, learning_rate=0.1, maximum=10.0
    )
    assert float(found) == pytest.approx(float(expected), rel=1e-12)


@given(st.floats(1e-3, 10), st.floats(-5, 5), st.floats(-5, 5))
def test_it_grows_above_the_limit_and_shrinks_below(
    start: float, cost: float, limit: float
) -> None:
    found = learned_multiplier(
        scalar(start), torch.tensor([cost]), torch.tensor([True]), limit, 0.1, maximum=1e9
    )
    moved, wanted = float(found) - start, float(torch.tensor(cost)) - limit
    assert moved * wanted >= 0 and float(found) > 0


def test_it_stays_finite_however_long_a_limit_is_exceeded() -> None:
    multiplier = scalar(1.0)
    for _ in range(100):
        multiplier = learned_multiplier(
            multiplier, torch.tensor([1.0]), torch.tensor([True]), 0.0, 0.1, maximum=10.0
        )
    assert float(multiplier) == 10.0


def test_without_any_cost_nothing_is_learned() -> None:
    nothing = torch.zeros(2), torch.zeros(2, dtype=torch.bool)
    assert (
        learned_multiplier(scalar(2.0), *nothing, limit=-1.0, learning_rate=0.1, maximum=10.0)
        == 2.0
    )


def test_advantages_are_between_the_rewards_and_minus_the_costs() -> None:
    rewards, costs = torch.tensor([1.0, -2.0]), torch.tensor([4.0, 0.0])
    found = penalized_advantages(rewards, costs, torch.tensor([0.0, 3.0]))
    assert found.tolist() == [1.0, -0.5]
    assert penalized_advantages(rewards, costs, torch.tensor(1.0)).tolist() == [-1.5, -1.0]
