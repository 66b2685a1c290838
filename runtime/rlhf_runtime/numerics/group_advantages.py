"""Advantages of responses relative to the other responses to the same prompt."""

from __future__ import annotations

from math import comb
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from rlhf_flow.step.operations import GroupBaseline

# Added to a group's standard deviation, outside the root.
STD_EPSILON = 1e-6


class AdvantageResult(NamedTuple):
    """Advantages of responses, with counts of their groups."""

    advantages: Float[Tensor, " rows"]
    """One per response, 0 for invalid responses."""
    num_groups: int
    """Prompts on this rank, including those without a valid response."""
    num_without_signal: int
    """Groups whose advantages are all 0: too few valid responses, or all with the same score."""


def pass_at_k(
    passed: Bool[Tensor, " rows"],
    group_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    k: int,
) -> Float64[Tensor, " groups"]:
    """Estimate the probability that at least one of k responses to a prompt passes.

    1 - C(n - c, k) / C(n, k), with n valid responses of which c pass; unbiased. Prompts with fewer
    than k valid responses are left out.

    Args:
        passed: True if the response passes.
        group_ids: number of the prompt that each response answers.
        valid: False for responses that do not count.
        k: number of responses.

    Source: Chen et al., Evaluating large language models trained on code (arXiv 2107.03374),
    equation 1.
    """
    # Groups are numbered from 0, in the order of their ids.
    _, group_of = torch.unique(group_ids, return_inverse=True)
    size = int(group_of.max()) + 1 if len(group_of) else 0
    counts, passing = (
        torch.bincount(group_of[kept], minlength=size).tolist() for kept in (valid, valid & passed)
    )
    shares = [
        # `comb` is exact, so only the quotient is rounded.
        1 - comb(n - c, k) / comb(n, k)
        for n, c in zip(counts, passing, strict=True)
        if n >= k
    ]
    return torch.tensor(shares, dtype=torch.float64)


class _Groups(NamedTuple):
    """Responses sorted into groups, with moments of their valid scores."""

    group_of: Int[Tensor, " rows"]
    counts: Float64[Tensor, " groups"]
    sums: Float64[Tensor, " groups"]
    equal: Bool[Tensor, " groups"]


def group_advantages(
    scores: Float[Tensor, " rows"],
    group_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    normalize_by_std: bool = True,
    baseline: GroupBaseline = GroupBaseline.MEAN,
    lengths: Int[Tensor, " rows"] | None = None,
) -> AdvantageResult:
    """Subtract from each score the baseline of its group: a mean of its valid scores.

    GRPO: (score - mean) / (std + 1e-6), std Bessel-corrected. RLOO: score - mean of the others.
    OPO: score - mean weighted by lengths. A group must lie on one rank entirely.

    Args:
        scores: one score per response.
        group_ids: number of the prompt that each response answers; any integers, in any order.
        valid: False for responses without a score; they do not count in the moments.
        normalize_by_std: False leaves the division out (Dr.GRPO).
        baseline: the kind of mean.
        lengths: tokens of each response; required for LENGTH_WEIGHTED.

    Returns:
        Advantages in the scores' dtype, with counts of groups.

    Source: GRPO (arXiv 2402.03300), section 4.1.2; Dr.GRPO (arXiv 2503.20783), section 3.2; RLOO
    (arXiv 2402.14740), equation 6; OPO (arXiv 2505.23585), equation 5.
    """
    kept, groups = _group(scores, group_ids, valid)
    counts, sums, group_of = groups.counts, groups.sums, groups.group_of
    # Responses in groups of equal scores get exactly 0, whatever rounding leaves of score - mean.
    # So does a response that is compared with none: when all others are invalid, its score as an
    # advantage would be the largest of the batch.
    is_compared = valid & ~(groups.equal | (counts < 2))[group_of]
    match baseline:
        case GroupBaseline.MEAN:
            against = (sums / counts.clamp(min=1))[group_of]
        case GroupBaseline.LEAVE_ONE_OUT:
            # Mean of the others: (sum - own) / (n - 1).
            against = (sums[group_of] - kept) / (counts[group_of] - 1).clamp(min=1)
        case GroupBaseline.LENGTH_WEIGHTED:
            assert lengths is not None, "LENGTH_WEIGHTED needs lengths"
            # OPO weights rewards by squared gradient norms, which grow about with length.
            weights = torch.where(valid, lengths.double(), 0.0)
            weighted = torch.zeros_like(sums).index_add_(0, group_of, weights * kept)
            total = torch.zeros_like(sums).index_add_(0, group_of, weights)
            against = (weighted / total.clamp(min=1))[group_of]
    centred = torch.where(is_compared, kept - against, 0.0)
    if normalize_by_std:
        squares = torch.zeros_like(sums).index_add_(0, group_of, centred.square())
        std = (squares / (counts - 1).clamp(min=1)).sqrt()
        centred = centred / (std[group_of] + STD_EPSILON)
    # Counted per group: a group without compared responses has no signal.
    num_compared = torch.zeros_like(sums).index_add_(0, group_of, is_compared.double())
    return AdvantageResult(centred.to(scores.dtype), len(counts), int((num_compared == 0).sum()))


def mixed_groups(
    scores: Float[Tensor, " rows"], group_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Mark valid responses whose group has valid responses of different scores.

    All other responses have advantage 0 and teach nothing.

    Args:
        scores: one score per response.
        group_ids: number of the prompt that each response answers.
        valid: False for responses without a score.

    Source: DAPO (arXiv 2503.14476), section 3.2.
    """
    _, groups = _group(scores, group_ids, valid)
    is_mixed = (groups.counts > 1) & ~groups.equal
    return valid & is_mixed[groups.group_of]


def _group(
    scores: Float[Tensor, " rows"], group_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> tuple[Float64[Tensor, " rows"], _Groups]:
    """Return scores in float64, invalid ones set to 0, and the groups."""
    ids, group_of = torch.unique(group_ids, return_inverse=True)
    kept = torch.where(valid, scores.detach().double(), 0.0)
    empty = torch.zeros(len(ids), dtype=torch.float64, device=scores.device)
    counts = empty.index_add(0, group_of, valid.double())
    sums = empty.index_add(0, group_of, kept)
    # Equality by extremes: rounding can leave the variance of equal scores above 0.
    lowest = group_extremes(kept, group_of, valid, len(ids), "amin")
    highest = group_extremes(kept, group_of, valid, len(ids), "amax")
    return kept, _Groups(group_of, counts, sums, (counts > 1) & (lowest == highest))


def group_extremes(
    values: Float64[Tensor, " rows"],
    group_of: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    num_groups: int,
    which: Literal["amin", "amax"],
) -> Float64[Tensor, " groups"]:
    """Return the lowest or the highest valid value of each group; inf or -inf without one.

    Args:
        values: one per row.
        group_of: number of the row's group, from 0.
        valid: False for rows that do not count.
        num_groups: number of groups.
        which: amin for the lowest, amax for the highest.
    """
    bound = float("inf") if which == "amin" else float("-inf")
    start = torch.full((num_groups,), bound, dtype=torch.float64, device=values.device)
    return start.scatter_reduce(0, group_of, torch.where(valid, values, bound), which)
