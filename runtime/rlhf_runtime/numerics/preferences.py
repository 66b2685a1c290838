"""Preferences between responses: pairs of a chosen and a rejected one, and their loss."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from rlhf_runtime.numerics.group_advantages import group_extremes


class Pairs(NamedTuple):
    """Positions of the rows of each pair."""

    chosen: Int[Tensor, " pairs"]
    rejected: Int[Tensor, " pairs"]


class PreferenceResult(NamedTuple):
    """A preference for each row, with counts of groups."""

    preference: Int8[Tensor, " rows"]
    """1 for the best row of a group, -1 for the worst, 0 for all others."""
    num_groups: int
    num_pairs: int
    """Groups with a best and a worst row."""


def best_against_worst(
    scores: Float[Tensor, " rows"], group_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> PreferenceResult:
    """Prefer the best to the worst valid row of each group; of equal rows the first.

    A group with fewer than two valid rows, or with equal scores only, has no preference. A group
    must lie on one rank entirely.

    Args:
        scores: one score per row.
        group_ids: number of the prompt that each row answers; any integers, in any order.
        valid: False for rows without a score.

    Source: RLHF Workflow (arXiv 2405.07863), section 3.
    """
    ids, group_of = torch.unique(group_ids, return_inverse=True)
    values, count = scores.detach().double(), len(ids)
    lowest = group_extremes(values, group_of, valid, count, "amin")
    highest = group_extremes(values, group_of, valid, count, "amax")
    differ = valid & (lowest < highest)[group_of]
    preference = torch.zeros(len(scores), dtype=torch.int8, device=scores.device)
    positions = torch.arange(len(scores), dtype=torch.float64, device=scores.device)
    for sign, extreme in ((1, highest), (-1, lowest)):
        is_extreme = differ & (values == extreme[group_of])
        # Of equal rows the first one: the minimum of their positions.
        first = group_extremes(positions, group_of, is_extreme, count, "amin")
        preference[first[first.isfinite()].long()] = sign
    return PreferenceResult(preference, count, int((preference > 0).sum()))


def list_pairs(groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]) -> Pairs:
    """List every pair of a chosen and a rejected row of the same group.

    Args:
        groups: rows of equal numbers answer the same prompt.
        preference: above 0 for chosen rows, below 0 for rejected rows, 0 for rows in no pair.

    Returns:
        Positions among the rows, pair by pair.
    """
    # [rows, rows]: True where the row beats the column's row.
    beats = (preference[:, None] > 0) & (preference[None, :] < 0)
    return Pairs(*torch.nonzero(beats & (groups[:, None] == groups[None, :]), as_tuple=True))


def count_pairs(groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]) -> int:
    """Count the pairs of `list_pairs` without listing them."""
    chosen, rejected, _ = _counts(groups, preference)
    # Every chosen row of a group is in a pair with every rejected one.
    return int((chosen * rejected).sum())


def is_paired(
    groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Mark rows that are in a pair of `list_pairs`."""
    chosen, rejected, group = _counts(groups, preference)
    return (preference != 0) & ((chosen > 0) & (rejected > 0))[group]


def _counts(
    groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, " groups"], Int[Tensor, " groups"], Int[Tensor, " rows"]]:
    """Count the chosen and the rejected rows of each group; also returns each row's group."""
    ids, group = torch.unique(groups, return_inverse=True)
    chosen, rejected = (
        torch.bincount(group[is_one], minlength=len(ids))
        for is_one in (preference > 0, preference < 0)
    )
    return chosen, rejected, group


def bradley_terry_loss(
    margins: Float[Tensor, " pairs"], label_smoothing: float = 0.0
) -> Float[Tensor, " pairs"]:
    """Compute -log sigmoid(margin): the negative log-probability that the chosen row is preferred.

    Args:
        margins: the chosen row's score minus the rejected one's.
        label_smoothing: the probability that a label is wrong.

    Returns:
        The loss of each pair, not averaged. Differentiable.

    Source: Ouyang et al., Training language models to follow instructions, 2022, equation 1;
    Mitchell, A note on DPO with noisy preferences, 2023, for the smoothing.
    """
    # -(1 - s) log sigmoid(m) - s log sigmoid(-m) = -log sigmoid(m) + s m.
    losses = -torch.nn.functional.logsigmoid(margins)
    return losses + label_smoothing * margins if label_smoothing else losses
