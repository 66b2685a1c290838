"""Mean and variance over the kept elements of all ranks.

Every function takes `reduce`, which sums a small float64 vector over the ranks that share the batch
(an all-reduce), so that the result does not depend on how the batch is divided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

Reduce = Callable[[Float64[Tensor, " n"]], Float64[Tensor, " n"]]
"""Sums a vector over ranks; every rank gets the sum."""


def no_reduce(vector: Float64[Tensor, " n"]) -> Float64[Tensor, " n"]:
    """Return the vector unchanged: the reduction of a batch on one rank."""
    return vector


class Moments(NamedTuple):
    """Count, mean and Bessel-corrected variance, float64 scalars on the batch's device."""

    num_elements: Float64[Tensor, ""]
    mean: Float64[Tensor, ""]
    variance: Float64[Tensor, ""]


def moments(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], reduce: Reduce = no_reduce
) -> Moments:
    """Compute count, mean and variance of the kept elements of all ranks.

    Args:
        x: this rank's elements.
        mask: True on kept elements.
        reduce: sums over ranks; every rank calls it twice, even without kept elements.

    Returns:
        The global moments. Without elements the mean is 0; with fewer than two the variance is 0.
    """
    # Two passes: the sum of squares minus the squared mean would cancel for a large mean.
    zero = torch.zeros((), dtype=torch.float64, device=x.device)
    kept = torch.where(mask, x.detach().double(), zero)
    count, total = reduce(torch.stack([mask.sum().double(), kept.sum()])).unbind()
    mean = total / count.clamp(min=1)
    squares = torch.where(mask, (kept - mean).square(), zero).sum()
    (sum_of_squares,) = reduce(squares[None]).unbind()
    # A single element has no variance; the clamp avoids 0 / 0.
    return Moments(count, mean, sum_of_squares / (count - 1).clamp(min=1))


def masked_var(
    x: Float[Tensor, "*shape"], mask: Bool[Tensor, "*shape"], reduce: Reduce = no_reduce
) -> Float64[Tensor, ""]:
    """Compute the Bessel-corrected variance of the kept elements of all ranks; detached."""
    return moments(x, mask, reduce).variance


def whiten(
    x: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    reduce: Reduce = no_reduce,
    epsilon: float = 1e-8,
) -> Float[Tensor, "*shape"]:
    """Shift and scale the kept elements to mean 0 and variance 1 over all ranks.

    (x - mean) / sqrt(variance + epsilon), with the variance Bessel-corrected.

    Args:
        x: this rank's elements.
        mask: True on kept elements.
        reduce: sums over ranks.
        epsilon: added to the variance, inside the root.

    Returns:
        Whitened elements in x's dtype, 0 on masked ones.
    """
    _, mean, variance = moments(x, mask, reduce)
    whitened = (x.double() - mean) * torch.rsqrt(variance + epsilon)
    return torch.where(mask, whitened.to(x.dtype), x.new_zeros(()))


def explained_variance(
    values: Float[Tensor, "*shape"],
    returns: Float[Tensor, "*shape"],
    mask: Bool[Tensor, "*shape"],
    reduce: Reduce = no_reduce,
) -> Float64[Tensor, ""]:
    """Compute the share of the returns' variance that the values explain: 1 - var(R - V) / var(R).

    1 is perfect, 0 no better than a constant, negative worse. 0 if the returns do not vary.
    """
    total = masked_var(returns, mask, reduce)
    residual = masked_var(returns.double() - values.double(), mask, reduce)
    explained = 1 - residual / torch.where(total > 0, total, torch.ones_like(total))
    return torch.where(total > 0, explained, torch.zeros_like(total))
