import pytest
import torch

from rlhf_runtime.numerics.rewards import (
    adapted_kl_coefficient,
    overlong_penalties,
    penalized_scores,
    token_rewards,
)

MASK = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [0, 0, 0, 0]], dtype=torch.bool)


def test_the_score_lies_on_the_last_response_token() -> None:
    rewards = token_rewards(torch.tensor([5.0, 7.0, 9.0]), MASK)
    assert rewards.tolist() == [[0, 5, 0, 0], [0, 0, 0, 7], [0, 0, 0, 0]]


def test_the_penalty_is_subtracted_from_every_response_token() -> None:
    kl = torch.arange(12.0).reshape(3, 4)
    rewards = token_rewards(torch.tensor([5.0, 7.0, 9.0]), MASK, kl, 0.5)
    assert rewards.tolist() == [[0, 4.5, 0, 0], [0, -2.5, 0, 3.5], [0, 0, 0, 0]]


def test_a_masked_penalty_that_is_not_a_number_does_not_count() -> None:
    kl = torch.where(MASK, 0.0, torch.nan)
    assert token_rewards(torch.ones(3), MASK, kl, 0.1).isfinite().all()


def test_a_score_loses_the_penalties_of_its_kept_tokens() -> None:
    kl = torch.where(MASK, torch.arange(12.0).reshape(3, 4), torch.nan)
    assert penalized_scores(torch.tensor([5.0, 7.0, 9.0]), MASK, kl, 0.5).tolist() == [
        *(5.0 - 0.5 * (0 + 1), 7.0 - 0.5 * (5 + 7), 9.0)
    ]


def test_the_last_tokens_before_the_limit_cost_in_proportion() -> None:
    lengths = torch.tensor([0, 6, 7, 8, 10, 12])
    got = overlong_penalties(lengths, longest=10, margin=4, penalty=2.0)
    assert got.tolist() == [0.0, 0.0, 0.5, 1.0, 2.0, 2.0]


@pytest.mark.parametrize(
    ("kl", "expected"),
    [
        ([6.0, 6.0], 0.5),
        ([6.6, 6.6], 0.5 * (1 + 0.1 * 2 / 100)),  # 10 percent above the target
        ([1000.0, 0.0], 0.5 * (1 + 0.2 * 2 / 100)),  # at most 20 percent count
        ([-9.0, 0.0], 0.5 * (1 - 0.2 * 2 / 100)),
        ([0.0] * 400, 0.5 * 0.8),  # more responses than a horizon count as one
        ([], 0.5),
        ([float("nan"), 1.0], 0.5),
    ],
)
def test_the_kl_coefficient_follows_the_kl_of_responses(kl: list[float], expected: float) -> None:
    coefficient = torch.tensor(0.5, dtype=torch.float64)
    adapted = adapted_kl_coefficient(coefficient, torch.tensor(kl), target=6.0, horizon=100)
    assert float(adapted) == pytest.approx(expected, rel=1e-6)
