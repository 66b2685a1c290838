"""Reserves a plan's nodes: all of them, or none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from rlhf_runtime.bounded_wait import BoundedWait

CREATED = "CREATED"
# Time that Ray needs if all nodes exist; messages begin only after it.
BRIEF_SECONDS = 1.0
NOT_YET = "nodes are there, but Ray has not set them aside"


class NotReserved(Exception):
    """The nodes could not be reserved in time; the text describes what is missing."""


def reserve(
    bundles: list[dict[str, float]], wait: BoundedWait, missing: Callable[[], str]
) -> PlacementGroup:
    """Create a placement group with a bundle on each of as many nodes, in the order of ranks.

    Args:
        bundles: resources per node.
        wait: time limit and messages.
        missing: describes what the cluster lacks.

    Raises:
        NotReserved: the time limit has passed.
    """
    brief_wait = dataclasses.replace(
        wait, seconds=BRIEF_SECONDS, report=_ignore, poll_seconds=BRIEF_SECONDS / 50
    )
    # A node that has died is in Ray's tables for some seconds: only reserved nodes certainly exist.
    group = placement_group(bundles, strategy="STRICT_SPREAD")

    def obstacle() -> str:
        is_ready = placement_group_table(group)["state"] == CREATED
        return "" if is_ready else missing() or NOT_YET

    try:
        if brief_wait.until_free(obstacle) and (left := wait.until_free(obstacle)):
            raise NotReserved(left)
    except BaseException:
        remove_placement_group(group)
        raise
    return group


def _ignore(_text: str) -> None: ...
