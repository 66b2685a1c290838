"""Token rewards from response scores, and penalties on scores."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from rlhf_runtime.numerics.moments import Reduce, no_reduce

# Largest relative error of the KL that an update counts.
MAX_KL_ERROR = 0.2


def weighted_sum(
    scores: Sequence[Float[Tensor, " rows"]], weights: Sequence[float]
) -> Float[Tensor, " rows"]:
    """Compute the weighted sum of scores, accumulated in float64.

    Args:
        scores: one or more columns.
        weights: one per column.
    """
    # In float64: the float32 result is rounded once.
    terms = [column.double() * weight for column, weight in zip(scores, weights, strict=True)]
    return torch.stack(terms).sum(dim=0).to(scores[0].dtype)


def token_rewards(
    scores: Float[Tensor, " rows"],
    mask: Bool[Tensor, "rows time"],
    kl: Float[Tensor, "rows time"] | None = None,
    kl_coefficient: float | Float[Tensor, "rows 1"] = 0.0,
) -> Float[Tensor, "rows time"]:
    """Give each response's score to its last token and subtract the KL penalty from every token.

    The last token is the last kept one, end-of-sequence or not. A row without kept tokens gets no
    reward.

    Args:
        scores: one score per response.
        mask: True on response tokens; False on prompt, padding and tool output.
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
    # Found by counting tokens, not by the largest position: a row may have no tokens, and a rank no
    # rows.
    num_left = mask.flip(1).cumsum(dim=1).flip(1)
    is_last = mask & (num_left == 1)
    return rewards + torch.where(is_last, scores[:, None], 0.0)


def penalized_scores(
    scores: Float[Tensor, " rows"],
    mask: Bool[Tensor, "rows time"],
    kl: Float[Tensor, "rows time"],
    kl_coefficient: float | Float[Tensor, " rows"],
) -> Float[Tensor, " rows"]:
    """Subtract from each response's score the KL penalties of its kept tokens.

    Args:
        scores: one score per response.
        mask: True on response tokens.
        kl: KL estimate of every token.
        kl_coefficient: weight of the penalty.

    Source: RLOO (arXiv 2402.14740), equation 1.
    """
    return scores - kl_coefficient * torch.where(mask, kl, 0.0).sum(dim=1)


def adapted_kl_coefficient(
    coefficient: Float64[Tensor, ""],
    kl: Float[Tensor, " rows"],
    target: float,
    horizon: int,
    reduce: Reduce = no_reduce,
) -> Float64[Tensor, ""]:
    """Update the coefficient c of a KL penalty by a proportional controller.

    c x (1 + clip(mean kl / target - 1, -0.2, 0.2) x rows / horizon). All rows together count as one
    horizon at most, so c stays above 0.

    Args:
        coefficient: the current value, above 0.
        kl: of this rank's responses, summed over their tokens, in nats.
        target: the desired mean.
        horizon: number of responses for a complete correction.
        reduce: sums over ranks. Without rows on all ranks, or with a mean that is no number, c is
            unchanged.

    Source: Ziegler et al. (arXiv 1909.08593), section 2.2.
    """
    own = torch.stack([kl.double().sum(), torch.tensor(float(len(kl)), dtype=torch.float64)])
    total, num_rows = reduce(own)
    if num_rows == 0 or total.isnan():
        return coefficient
    error = (total / num_rows / target - 1.0).clamp(-MAX_KL_ERROR, MAX_KL_ERROR)
    factor: Tensor = 1.0 + error * (num_rows / horizon).clamp(max=1.0)
    return coefficient * factor


def overlong_penalties(
    lengths: Int[Tensor, " rows"], longest: int, margin: int, penalty: float
) -> Float[Tensor, " rows"]:
    """Compute penalties for responses near the length limit.

    0 up to `longest - margin` tokens, then linear up to `penalty` at `longest` and beyond.

    Args:
        lengths: tokens of each response.
        longest: the length limit.
        margin: tokens before the limit over which the penalty grows; at least 1.
        penalty: the maximum penalty.

    Source: DAPO (arXiv 2503.14476), equation 13.
    """
    over = (lengths.float() - (longest - margin)) / margin
    return penalty * over.clamp(0.0, 1.0)
