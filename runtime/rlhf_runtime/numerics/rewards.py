"""Rewards per token from scores per response."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def token_rewards(
    scores: Float[Tensor, " rows"],
    mask: Bool[Tensor, "rows time"],
    kl: Float[Tensor, "rows time"] | None = None,
    kl_coefficient: float = 0.0,
) -> Float[Tensor, "rows time"]:
    """Give each response's score to its last token and subtract the KL penalty from every token.

    The last token is the last one that the mask keeps, end-of-sequence or not; a row without any
    kept token gets no reward at all.

    Args:
        scores: one score per response.
        mask: True on response tokens (not on prompt, padding or tool output).
        kl: KL estimate of every token; None for no penalty.
        kl_coefficient: weight of the penalty.

    Returns:
        Rewards, 0 on masked tokens.

    Source: InstructGPT (arXiv 2203.02155), equation 2, with the penalty token by token.
    """
    if kl is None:
        rewards = scores.new_zeros(mask.shape)
    else:
        rewards = torch.where(mask, -kl_coefficient * kl, 0.0)
    positions = torch.arange(mask.shape[1], device=mask.device)
    last = torch.where(mask, positions, -1).amax(dim=1, keepdim=True)
    return rewards + torch.where(positions == last, scores[:, None], 0.0)
