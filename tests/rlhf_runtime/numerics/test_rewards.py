import torch

from rlhf_runtime.numerics.rewards import token_rewards

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
