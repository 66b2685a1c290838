"""Costs that have to stay below a limit: what they weigh, and what that makes of advantages."""

from __future__ import annotations

from jaxtyping import Bool, Float, Float64
from torch import Tensor

from rlhf_runtime.numerics.moments import Reduce, moments, no_reduce


def learned_multiplier(
    multiplier: Float64[Tensor, ""],
    costs: Float[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    limit: float,
    learning_rate: float,
    maximum: float,
    reduce: Reduce = no_reduce,
) -> Float64[Tensor, ""]:
    """The next value of a Lagrange multiplier m: log m + learning_rate m (mean cost - limit).

    Args:
        multiplier: the last value, above 0.
        costs: of this rank's responses.
        valid: True where there is a cost; without any on all ranks nothing is learned.
        limit: the mean cost that is allowed.
        learning_rate: how much of the gradient is taken.
        maximum: it grows no further.
        reduce: sums over ranks.

    Source: Dai et al., Safe RLHF (arXiv 2310.12773), appendix B.
    """
    found = moments(costs, valid, reduce)
    if found.num_elements == 0:
        return multiplier
    step = learning_rate * multiplier * (found.mean - limit)
    return (multiplier * step.exp()).clamp(max=maximum)


def penalized_advantages(
    advantages: Float[Tensor, "*tokens"],
    costs: Float[Tensor, "*tokens"],
    multiplier: Float[Tensor, "*#tokens"],
) -> Float[Tensor, "*tokens"]:
    """(advantages - m costs) / (1 + m): of the same size whatever the multiplier m is."""
    return (advantages - multiplier * costs) / (1 + multiplier)
