"""How token losses become one number that does not depend on how the mini-batch is cut.

Every mode divides by counts of the whole mini-batch, known before its first micro-batch runs. Each
micro-batch contributes a share; the shares of all micro-batches on all ranks sum to the value of
the mini-batch. Where gradients are *averaged* over data-parallel ranks, each rank multiplies its
shares by their number.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_api.spec.policy_loss import LossAggregation


@dataclass(frozen=True)
class Denominators:
    """Counts of a whole mini-batch, over all its micro-batches and ranks."""

    num_tokens: int
    """Kept tokens."""
    num_sequences: int
    """Sequences with at least one kept token."""
    fixed_length: int | None = None
    """The length that SEQUENCE_MEAN_FIXED_LENGTH divides by: the longest allowed response."""


def aggregate(
    token_losses: Float[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    mode: LossAggregation,
    denominators: Denominators,
) -> Float[Tensor, ""]:
    """This micro-batch's share of the mini-batch's loss. Differentiable.

    A sequence lies in one micro-batch entirely.

    Args:
        token_losses: one loss per token; masked ones do not count, not even as NaN.
        mask: True on kept tokens.
        mode: what is averaged over what.
        denominators: counts of the whole mini-batch.

    Returns:
        A scalar, 0 if nothing is kept; the shares of all micro-batches sum to the whole loss.

    Raises:
        ValueError: the mode needs a fixed length and there is none.

    Source: DAPO (arXiv 2503.14476), section 3.3; Dr.GRPO (arXiv 2503.20783), section 3.2.
    """
    sums = torch.where(mask, token_losses, torch.zeros_like(token_losses)).sum(dim=1)
    num_sequences = max(1, denominators.num_sequences)
    match mode:
        case LossAggregation.TOKEN_MEAN:
            return sums.sum() / max(1, denominators.num_tokens)
        case LossAggregation.SEQUENCE_MEAN_TOKEN_SUM:
            return sums.sum() / num_sequences
        case LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN:
            return (sums / mask.sum(dim=1).clamp(min=1)).sum() / num_sequences
        case LossAggregation.SEQUENCE_MEAN_FIXED_LENGTH:
            if denominators.fixed_length is None:
                raise ValueError(
                    f"aggregation {mode.value} without its length: got fixed_length None; pass the "
                    "longest allowed response to Denominators"
                )
            return sums.sum() / (num_sequences * denominators.fixed_length)
