"""How many ranks hold each weight, every element of it as often as the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.layout import Layout, TensorGroup
from rlhf_runtime.reshard.slices import TensorSlice, uncovered


def num_copies(layout: Layout) -> dict[str, int]:
    """How many ranks hold each element of a tensor, by name.

    Raises:
        LayoutError: some elements are held by more ranks than others.
    """
    copies: dict[str, int] = {}
    for group in layout.groups:
        count = _uniform_count(group) or _most_copies(group)
        _check_family(group, count)
        copies |= dict.fromkeys(group.names, count)
    return copies


def check_copies(layout: Layout, wanted: Mapping[str, int]) -> None:
    """Check that every element of every tensor is held by as many ranks as it should be.

    Args:
        layout: of some ranks.
        wanted: how many of them hold each element of a tensor, by name.

    Raises:
        LayoutError: a region that is missing on some of them, or held too often.
    """
    for group in layout.groups:
        for count in {wanted[name] for name in group.names}:
            _check_family(group, count)


def _uniform_count(group: TensorGroup) -> int | None:
    """The number of ranks of each box, where boxes do not overlap, all have as many, and no rank
    has one twice."""
    counts = {len(ranks) for ranks in group.holders.values()}
    is_uniform = group.is_disjoint and len(counts) == 1
    has_twice = any(len(set(boxes)) < len(boxes) for _, boxes in group.shares)
    return counts.pop() if is_uniform and not has_twice else None


def _most_copies(group: TensorGroup) -> int:
    """How often all boxes together can be the whole."""
    volume = sum(box.volume * len(ranks) for ranks, boxes in group.shares for box in boxes)
    return max(1, volume // max(1, prod(group.shape)))


def _check_family(group: TensorGroup, copies: int) -> None:
    """Lay the boxes one upon the other: each of `copies` levels has to be the whole."""
    if _uniform_count(group) == copies:
        return  # a layout covers its tensors
    name = group.names[0]
    levels: list[list[TensorSlice]] = [[] for _ in range(copies)]
    held = [(rank, box) for ranks, boxes in group.shares for rank in ranks for box in boxes]
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
        if missing := uncovered(TensorSlice.full(group.shape), level):
            raise LayoutError(
                f"a region is missing: got {missing[0]} of {name!r} on fewer ranks, allowed on "
                f"{copies} of them; correct the engine's boxes"
            )


def _rest(parts: Iterable[TensorSlice], level: list[TensorSlice]) -> list[TensorSlice]:
    return [left for part in parts for left in uncovered(part, level)]


def _overlap(parts: Iterable[TensorSlice], level: list[TensorSlice]) -> list[TensorSlice]:
    common = (part.intersection(box) for part in parts for box in level)
    return [box for box in common if box is not None]
