"""Sets a plan's nodes aside: all of them, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rlhf_runtime.patience import Patience

CREATED = "CREATED"
BRIEF_SECONDS = 1.0
"""What it takes where all nodes are there; nobody needs to hear of it."""
NOT_YET = "nodes are there, but Ray has not set them aside"


class NotReserved(Exception):
    """The nodes could not be set aside in time; the text says what is missing."""


def reserve(
    bundles: list[dict[str, float]], patience: Patience, missing: Callable[[], str]
) -> PlacementGroup:
    """A placement group with a bundle on each of as many nodes, in the order of ranks.

    A node that has just died is in Ray's tables for some seconds: only what has been set aside is
    known to be there.

    Args:
        bundles: what is taken of each.
        patience: how long it may take.
        missing: says what the cluster lacks, as far as is known.

    Raises:
        NotReserved: it takes longer.
    """
    at_once = dataclasses.replace(
        patience, seconds=BRIEF_SECONDS, tell=_ignore, pause_seconds=BRIEF_SECONDS / 50
    )
    group = placement_group(bundles, strategy="STRICT_SPREAD")

    def obstacle() -> str:
        is_ready = placement_group_table(group)["state"] == CREATED
        return "" if is_ready else missing() or NOT_YET

    try:
        if at_once.until_free(obstacle) and (left := patience.until_free(obstacle)):
            raise NotReserved(left)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _ignore(_text: str) -> None:
    """Tell nobody."""
