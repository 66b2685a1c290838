"""Advantages of responses relative to the other responses to the same prompt."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

STD_EPSILON = 1e-6
"""Added to a group's standard deviation, outside the root."""


class GroupAdvantages(NamedTuple):
    """Advantages of the responses, and what their groups were like."""

    advantages: Float[Tensor, " rows"]
    """One per response, 0 for invalid ones."""
    num_groups: int
    """Groups with at least one valid response."""
    num_equal_groups: int
    """Of these, groups of two or more valid responses that all have the same score: no signal."""


class _Groups(NamedTuple):
    """Responses sorted into groups."""

    group_of: Int[Tensor, " rows"]
    counts: Float64[Tensor, " groups"]
    sums: Float64[Tensor, " groups"]
    equal: Bool[Tensor, " groups"]


def group_advantages(
    scores: Float[Tensor, " rows"],
    group_ids: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    normalize_by_std: bool = True,
) -> GroupAdvantages:
    """GRPO's advantages: (score - group mean) / (group std + 1e-6), std Bessel-corrected.

    A group of one has mean 0 and std 1. A group must lie on one rank entirely.

    Args:
        scores: one score per response.
        group_ids: which prompt each response answers; any integers, in any order.
        valid: False for responses without a score: they do not count in the moments.
        normalize_by_std: False leaves the division out (Dr.GRPO).

    Returns:
        Advantages in the scores' dtype, with counts of groups.

    Source: GRPO (arXiv 2402.03300), section 4.1.2; Dr.GRPO (arXiv 2503.20783), section 3.2.
    """
    kept, groups = _group(scores, group_ids, valid)
    alone = groups.counts < 2
    means = torch.where(alone, 0.0, groups.sums / groups.counts.clamp(min=1))
    centred = torch.where(
        valid & ~groups.equal[groups.group_of], kept - means[groups.group_of], 0.0
    )
    if normalize_by_std:
        squares = torch.zeros_like(groups.sums).index_add_(0, groups.group_of, centred.square())
        std = torch.where(alone, 1.0, (squares / (groups.counts - 1).clamp(min=1)).sqrt())
        centred = centred / (std[groups.group_of] + STD_EPSILON)
    return GroupAdvantages(
        centred.to(scores.dtype), int((groups.counts > 0).sum()), int(groups.equal.sum())
    )


def _group(
    scores: Float[Tensor, " rows"], group_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> tuple[Float64[Tensor, " rows"], _Groups]:
    """Scores in float64 with invalid ones set to 0, and the groups' sums."""
    ids, group_of = torch.unique(group_ids, return_inverse=True)
    kept = torch.where(valid, scores.detach().double(), 0.0)
    empty = torch.zeros(len(ids), dtype=torch.float64, device=scores.device)
    counts = empty.index_add(0, group_of, valid.double())
    sums = empty.index_add(0, group_of, kept)
    lowest = extreme_of_groups(kept, group_of, valid, len(ids), "amin")
    highest = extreme_of_groups(kept, group_of, valid, len(ids), "amax")
    return kept, _Groups(group_of, counts, sums, (counts > 1) & (lowest == highest))


def extreme_of_groups(
    values: Float64[Tensor, " rows"],
    group_of: Int[Tensor, " rows"],
    valid: Bool[Tensor, " rows"],
    num_groups: int,
    which: Literal["amin", "amax"],
) -> Float64[Tensor, " groups"]:
    """The lowest or the highest valid value of each group; inf or -inf where none is.

    Args:
        values: one per row.
        group_of: the row's group, from 0.
        valid: False for rows that do not count.
        num_groups: how many there are.
        which: amin or amax.
    """
    bound = float("inf") if which == "amin" else float("-inf")
    start = torch.full((num_groups,), bound, dtype=torch.float64, device=values.device)
    return start.scatter_reduce(0, group_of, torch.where(valid, values, bound), which)
