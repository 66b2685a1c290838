"""Cross entropy over given answers."""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from rlhf_api.algorithm import LossAggregation
from rlhf_runtime.numerics.aggregation import Denominators, aggregate


def cross_entropy(
    log_probs: Float[Tensor, "rows time"],
    mask: Bool[Tensor, "rows time"],
    denominators: Denominators,
) -> Float[Tensor, ""]:
    """This micro-batch's share of the mean negative log-probability of the answers' tokens.

    Args:
        log_probs: the model's log-probabilities of the given tokens.
        mask: True on answer tokens (not on prompt or padding).
        denominators: counts of the whole mini-batch.

    Returns:
        A scalar; the shares of all micro-batches and ranks sum to the mini-batch's cross entropy.
    """
    return aggregate(-log_probs, mask, LossAggregation.TOKEN_MEAN, denominators)
