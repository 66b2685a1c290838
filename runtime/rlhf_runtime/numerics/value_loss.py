"""The critic's loss, token by token."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class TokenValueLoss(NamedTuple):
    """Loss and statistics of every token; nothing is masked or aggregated."""

    token_losses: Float[Tensor, "*tokens"]
    """To be minimised; carries the gradient."""
    clipped: Bool[Tensor, "*tokens"]
    """Where the clip is in force: no gradient flows."""


def clipped_value_loss(
    values: Float[Tensor, "*tokens"],
    old_values: Float[Tensor, "*tokens"],
    returns: Float[Tensor, "*tokens"],
    clip_range: float | None = None,
) -> TokenValueLoss:
    """Half the squared error, the larger of that of the value and that of the clipped value.

    0.5 max((v - R)^2, (clip(v, v_old - clip_range, v_old + clip_range) - R)^2).

    Args:
        values: the critic's values.
        old_values: its values when the returns were made; no gradient flows into them.
        returns: targets; no gradient flows into them.
        clip_range: how far a value may move from the old one; None for no clip.

    Returns:
        Token losses and where the clip is in force.

    Source: the clip of PPO's reference implementation (openai/baselines, ppo2).
    """
    returns = returns.detach()
    plain = (values - returns).square()
    if clip_range is None:
        return TokenValueLoss(0.5 * plain, torch.zeros_like(plain, dtype=torch.bool))
    old_values = old_values.detach()
    moved = old_values + (values - old_values).clamp(-clip_range, clip_range)
    bounded = (moved - returns).square()
    return TokenValueLoss(0.5 * torch.maximum(plain, bounded), bounded > plain)
