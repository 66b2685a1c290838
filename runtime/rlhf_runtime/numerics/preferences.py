"""Preferences between responses: who is in a pair, and how well scores agree with it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int, Int8
from torch import Tensor

from rlhf_runtime.numerics.groups import group_extremes


class Pairs(NamedTuple):
    """Positions of the rows of each pair."""

    chosen: Int[Tensor, " pairs"]
    rejected: Int[Tensor, " pairs"]


class PreferenceResult(NamedTuple):
    """A preference for each row, and how many groups have one."""

    preference: Int8[Tensor, " rows"]
    """1 for the best row of a group, -1 for the worst, 0 for all others."""
    num_groups: int
    num_pairs: int
    """Groups with a best and a worst row."""


def best_against_worst(
    scores: Float[Tensor, " rows"], group_ids: Int[Tensor, " rows"], valid: Bool[Tensor, " rows"]
) -> PreferenceResult:
    """The best and the worst valid row of each group; of equal ones the first.

    A group whose valid scores are all equal, or with fewer than two of them, has neither. A group
    must lie on one rank entirely.

    Args:
        scores: one score per row.
        group_ids: which prompt each row answers; any integers, in any order.
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
        reached = differ & (values == extreme[group_of])
        first = group_extremes(positions, group_of, reached, count, "amin")
        preference[first[first.isfinite()].long()] = sign
    return PreferenceResult(preference, count, int((preference > 0).sum()))


def list_pairs(groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]) -> Pairs:
    """Every pair of a chosen and a rejected row of the same group.

    Args:
        groups: rows of equal numbers answer the same prompt.
        preference: above 0 where a row is chosen, below 0 where it is rejected; rows of 0 are in no
            pair.

    Returns:
        Positions among the rows, pair by pair.
    """
    beats = (preference[:, None] > 0) & (preference[None, :] < 0)
    return Pairs(*torch.nonzero(beats & (groups[:, None] == groups[None, :]), as_tuple=True))


def count_pairs(groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]) -> int:
    """How many pairs `list_pairs` lists, without listing them."""
    chosen, rejected, _ = _counts(groups, preference)
    return int((chosen * rejected).sum())


def is_paired(
    groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]
) -> Bool[Tensor, " rows"]:
    """Whether each row is in a pair that `list_pairs` lists."""
    chosen, rejected, group = _counts(groups, preference)
    return (preference != 0) & ((chosen > 0) & (rejected > 0))[group]


def _counts(
    groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]
) -> tuple[Int[Tensor, " groups"], Int[Tensor, " groups"], Int[Tensor, " rows"]]:
    """Chosen and rejected rows of each group, and the group of each row."""
    ids, group = torch.unique(groups, return_inverse=True)
    chosen, rejected = (
        torch.bincount(group[is_one], minlength=len(ids))
        for is_one in (preference > 0, preference < 0)
    )
    return chosen, rejected, group


def bradley_terry_loss(
    margins: Float[Tensor, " pairs"], label_smoothing: float = 0.0
) -> Float[Tensor, " pairs"]:
    """Minus the log-probability that each chosen row beats the rejected one: -log sigmoid(margin).

    Args:
        margins: the chosen row's score minus the rejected one's.
        label_smoothing: the probability that it is the other way round.

    Returns:
        The loss of each pair, not averaged. Differentiable.

    Source: Ouyang et al., Training language models to follow instructions, 2022, equation 1;
    Mitchell, A note on DPO with noisy preferences, 2023, for the smoothing.
    """
    losses = -torch.nn.functional.logsigmoid(margins)
    return losses + label_smoothing * margins if label_smoothing else losses
