"""Advantages of the turns of conversations."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rlhf_runtime.numerics.group_advantages import group_advantages


def turn_advantages(
    turn_rewards: Float[Tensor, "rows tokens"],
    mask: Bool[Tensor, "rows tokens"],
    group_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    discount: float,
    normalize_by_std: bool,
) -> Float[Tensor, "rows tokens"]:
    """Compare the discounted rewards from each turn on with those of the other samples of a prompt.

    Samples that do not have the turn, or are invalid, take no part.

    Args:
        turn_rewards: reward of each turn, on one of its tokens.
        mask: True for tokens that were sampled; a turn is a run of them.
        group_ids: number of the prompt that each row answers.
        valid: False for rows without a score.
        discount: factor of a reward for each turn that lies between.
        normalize_by_std: True to divide by the standard deviation of the compared samples.

    Returns:
        The advantage of its turn on each sampled token, 0 on others.

    Source: GiGPO (arXiv 2505.10978), section 4.2.
    """
    if not mask.any():
        return torch.zeros_like(turn_rewards)
    turns = turn_numbers(mask)
    num_turns = int(turns.max()) + 1
    index = turns.clamp(min=0)
    empty = torch.zeros(len(mask), num_turns, dtype=torch.float64)
    rewards = empty.scatter_add(1, index, torch.where(mask, turn_rewards, 0.0).double())
    exists = empty.scatter_add(1, index, mask.double()) > 0
    returns = torch.zeros_like(rewards)
    later = torch.zeros(len(mask), dtype=torch.float64)
    for turn in reversed(range(num_turns)):
        later = returns[:, turn] = rewards[:, turn] + discount * later
    advantages = torch.stack(
        [
            group_advantages(
                returns[:, turn], group_ids, valid & exists[:, turn], normalize_by_std
            ).advantages
            for turn in range(num_turns)
        ],
        dim=1,
    )
    chosen = advantages.gather(1, index).to(turn_rewards.dtype)
    return torch.where(mask, chosen, 0.0)


def turn_numbers(mask: Bool[Tensor, "rows tokens"]) -> Int[Tensor, "rows tokens"]:
    """Number the runs of sampled tokens in each row, from 0; -1 in front of the first one.

    Args:
        mask: True for tokens that were sampled.
    """
    before = torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return (mask & ~before).long().cumsum(dim=1) - 1
