"""How many ranks hold each weight, every element of it as often as the others."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from rlhf_runtime.reshard.boxes import Box, uncovered
from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Family, Layout


def num_copies(layout: Layout) -> dict[str, int]:
    """How many ranks hold each element of a tensor, by name.

    Raises:
        LayoutError: some elements are held by more ranks than others.
    """
    copies: dict[str, int] = {}
    for family in layout.families:
        copies |= dict.fromkeys(family.names, _copies_of(family))
    return copies


def _copies_of(family: Family) -> int:
    holders = family.holders
    counts = {len(ranks) for ranks in holders.values()}
    if family.is_disjoint and len(counts) == 1:
        return counts.pop()
    held = [(rank, box) for box, ranks in holders.items() for rank in ranks]
    volume = sum(box.volume for _, box in held)
    copies = max(1, volume // max(1, prod(family.shape)))
    _check_levels(family.names[0], Box.whole(family.shape), held, copies)
    return copies


def _check_levels(name: str, whole: Box, held: list[tuple[int, Box]], copies: int) -> None:
    """Lay the boxes one upon the other: each of `copies` levels has to be the whole."""
    levels: list[list[Box]] = [[] for _ in range(copies)]
    for rank, box in held:
        parts = [box]
        for level in levels:
            parts, new = _overlap(parts, level), _rest(parts, level)
            level += new
        if parts:
            raise LayoutError(
                f"a region is held too often: got {parts[0]} of {name!r} once more on rank {rank}, "
                f"allowed on {copies} of these ranks; correct the engine's boxes"
            )
    for level in levels:
        if missing := uncovered(whole, level):
            raise LayoutError(
                f"a region is missing: got {missing[0]} of {name!r} on fewer ranks, allowed on "
                f"{copies} of them; correct the engine's boxes"
            )


def _rest(parts: Iterable[Box], level: list[Box]) -> list[Box]:
    return [left for part in parts for left in uncovered(part, level)]


def _overlap(parts: Iterable[Box], level: list[Box]) -> list[Box]:
    common = (part.intersection(box) for part in parts for box in level)
    return [box for box in common if box is not None]
