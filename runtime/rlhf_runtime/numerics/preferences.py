"""How well scores agree with preferences, pair by pair."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Pairs(NamedTuple):
    """Positions of the rows of each pair."""

    chosen: Int[Tensor, " pairs"]
    rejected: Int[Tensor, " pairs"]


def pairs_of(groups: Int[Tensor, " rows"], preference: Int[Tensor, " rows"]) -> Pairs:
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
    """How many pairs `pairs_of` lists, without listing them."""
    _, group = torch.unique(groups, return_inverse=True)
    chosen, rejected = (
        torch.bincount(group[is_one]) for is_one in (preference > 0, preference < 0)
    )
    size = min(len(chosen), len(rejected))
    return int((chosen[:size] * rejected[:size]).sum())


def bradley_terry_loss(margins: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
    """Minus the log-probability that each chosen row beats the rejected one: -log sigmoid(margin).

    Args:
        margins: the chosen row's score minus the rejected one's.

    Returns:
        The loss of each pair, not averaged. Differentiable.

    Source: Ouyang et al., Training language models to follow instructions, 2022, equation 1.
    """
    return -torch.nn.functional.logsigmoid(margins)
