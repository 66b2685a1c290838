import torch

from rlhf_runtime.numerics.rewards import overlong_penalties, penalized_scores, token_rewards

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
