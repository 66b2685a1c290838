"""Layouts: the slices of every tensor that each rank holds, and on how many ranks. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.slices import TensorSlice, uncovered


class Piece(NamedTuple):
    """A slice of a tensor that a rank holds."""

    name: str
    """The tensor's canonical (Hugging Face) name."""
    box: TensorSlice
    """Position in the full tensor; may be empty."""


Pieces = tuple[Piece, ...]
"""The pieces of one rank."""


class RankSlices(NamedTuple):
    """Slices of a tensor that several ranks hold alike."""

    ranks: tuple[int, ...]
    boxes: tuple[TensorSlice, ...]
    """Not empty, in the order of the ranks' pieces."""


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape and one distribution, such as a projection of every layer."""

    names: tuple[str, ...]
    """Sorted."""
    shape: tuple[int, ...]
    rank_slices: tuple[RankSlices, ...]
    """Their ranks are disjoint. Ranks without an element are left out."""

    @cached_property
    def holders(self) -> dict[TensorSlice, tuple[int, ...]]:
        """The distinct boxes, and the ascending ranks that hold each."""
        holders: dict[TensorSlice, list[int]] = {}
        for ranks, boxes in self.rank_slices:
            for box in dict.fromkeys(boxes):
                holders.setdefault(box, []).extend(ranks)
        return {box: tuple(sorted(ranks)) for box, ranks in holders.items()}

    @property
    def is_disjoint(self) -> bool:
        """True if no element lies in two different boxes."""
        # A layout covers its tensors: equal volumes leave nothing for an overlap.
        return sum(box.volume for box in self.holders) == prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The pieces of every rank of a world, without dtypes. Validated on construction.

    Several ranks may hold the same elements (replicas); a rank may hold several pieces of a tensor.

    Raises:
        LayoutError: a piece reaches beyond its tensor, names no tensor or has another number of
            dimensions, or no rank holds some part of a tensor.
    """

    shapes: Mapping[str, tuple[int, ...]]
    """The full shape of every tensor."""
    pieces: tuple[Pieces, ...]
    """The pieces of each rank. Equal ranks may share one tuple, which is then read only once."""

    def __post_init__(self) -> None:
        for group in self.groups:
            self._check_inside(group)
            self._check_coverage(group)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.pieces)

    def num_elements(self, rank: int) -> int:
        """Number of elements on a rank."""
        return sum(piece.box.volume for piece in self.pieces[rank])

    @cached_property
    def groups(self) -> tuple[TensorGroup, ...]:
        """The tensors grouped by shape and distribution, ordered by their first names."""
        ranks_by_pieces = self._ranks_by_pieces()
        boxes_by_name: dict[str, list[tuple[int, TensorSlice]]] = {
            name: [] for name in sorted(self.shapes)
        }
        for number, (pieces, ranks) in enumerate(ranks_by_pieces):
            for name, box in pieces:
                if name not in boxes_by_name:
                    raise LayoutError(
                        f"piece of an unknown tensor: got {name!r} on rank {ranks[0]}; add its "
                        "full shape to the layout or drop the piece"
                    )
                if 0 not in box.shape:  # empty boxes carry no elements, and would split groups
                    boxes_by_name[name].append((number, box))
        # Keys have numbers of sets of pieces, not ranks: so they stay short with many replicas.
        alike: dict[tuple[tuple[int, ...], tuple[tuple[int, TensorSlice], ...]], list[str]] = {}
        for name, boxes in boxes_by_name.items():
            alike.setdefault((tuple(self.shapes[name]), tuple(boxes)), []).append(name)
        ranks_by_number = [ranks for _, ranks in ranks_by_pieces]
        return tuple(
            TensorGroup(tuple(names), shape, _rank_slices(boxes, ranks_by_number))
            for (shape, boxes), names in alike.items()
        )

    def _ranks_by_pieces(self) -> list[tuple[Pieces, tuple[int, ...]]]:
        """Each distinct set of pieces, with the ascending ranks that hold exactly it."""
        # First by identity: comparing large tuples is slow, and replicas often share one.
        by_identity: dict[int, list[int]] = {}
        for rank, pieces in enumerate(self.pieces):
            by_identity.setdefault(id(pieces), []).append(rank)
        by_value: dict[Pieces, list[int]] = {}
        for ranks in by_identity.values():
            by_value.setdefault(self.pieces[ranks[0]], []).extend(ranks)
        return [(pieces, tuple(sorted(ranks))) for pieces, ranks in by_value.items()]

    def _check_inside(self, group: TensorGroup) -> None:
        for ranks, boxes in group.rank_slices:
            for box in boxes:
                if not _is_inside(box, group.shape):
                    raise LayoutError(
                        f"piece outside its tensor: got {box} of {group.names[0]!r} on rank "
                        f"{ranks[0]}, allowed inside shape {group.shape}; leave padding out and "
                        "use the full tensor's indices"
                    )

    def _check_coverage(self, group: TensorGroup) -> None:
        if missing := uncovered(TensorSlice.full(group.shape), group.holders):
            raise LayoutError(
                f"tensor {group.names[0]!r} of shape {group.shape} is incomplete: none of "
                f"{self.world_size} ranks has {missing[0]}; add the missing pieces"
            )


def common_groups(
    source: Layout, target: Layout
) -> Iterator[tuple[tuple[str, ...], TensorGroup, TensorGroup]]:
    """The target's tensors, grouped by their distribution in both layouts, in a fixed order.

    The source must have all of them, in the same shapes.
    """
    source_groups = {name: group for group in source.groups for name in group.names}
    for target_group in target.groups:
        by_source: dict[int, list[str]] = {}
        for name in target_group.names:
            # A layout caches its groups, so that an id identifies one.
            by_source.setdefault(id(source_groups[name]), []).append(name)
        for names in by_source.values():
            yield tuple(names), source_groups[names[0]], target_group


def _rank_slices(
    boxes: tuple[tuple[int, TensorSlice], ...], ranks_by_number: list[tuple[int, ...]]
) -> tuple[RankSlices, ...]:
    by_number: dict[int, list[TensorSlice]] = {}
    for number, box in boxes:
        by_number.setdefault(number, []).append(box)
    return tuple(
        RankSlices(ranks_by_number[number], tuple(own)) for number, own in by_number.items()
    )


def _is_inside(box: TensorSlice, shape: tuple[int, ...]) -> bool:
    return len(box.start) == len(box.shape) == len(shape) and all(
        first >= 0 and length >= 0 and first + length <= full
        for first, length, full in zip(box.start, box.shape, shape, strict=True)
    )


def num_copies(layout: Layout) -> dict[str, int]:
    """The number of ranks that hold each element of a tensor, by tensor name.

    Raises:
        LayoutError: some elements of a tensor are on more ranks than others.
    """
    copies: dict[str, int] = {}
    for group in layout.groups:
        count = _uniform_count(group) or _max_copies(group)
        _check_group(group, count)
        copies |= dict.fromkeys(group.names, count)
    return copies


def check_copies(layout: Layout, expected: Mapping[str, int]) -> None:
    """Check that every element of every tensor is on the expected number of ranks.

    Args:
        layout: of some ranks.
        expected: ranks per element of a tensor, by tensor name.

    Raises:
        LayoutError: a region is on too few or too many ranks.
    """
    for group in layout.groups:
        for count in {expected[name] for name in group.names}:
            _check_group(group, count)


def _uniform_count(group: TensorGroup) -> int | None:
    """The number of ranks per box if boxes do not overlap and all are on equally many ranks.

    None otherwise, and if a rank has a box twice.
    """
    counts = {len(ranks) for ranks in group.holders.values()}
    is_uniform = group.is_disjoint and len(counts) == 1
    has_duplicates = any(len(set(boxes)) < len(boxes) for _, boxes in group.rank_slices)
    return counts.pop() if is_uniform and not has_duplicates else None


def _max_copies(group: TensorGroup) -> int:
    """Upper bound of the number of full copies, by volume."""
    volume = sum(box.volume * len(ranks) for ranks, boxes in group.rank_slices for box in boxes)
    return max(1, volume // max(1, prod(group.shape)))


def _check_group(group: TensorGroup, copies: int) -> None:
    """Stack the boxes in `copies` levels; every level has to be the full tensor."""
    if _uniform_count(group) == copies:
        return  # a layout covers its tensors
    name = group.names[0]
    # Each box fills the first level that is still free there; the rest is one copy too many.
    levels: list[list[TensorSlice]] = [[] for _ in range(copies)]
    rank_boxes = [
        (rank, box) for ranks, boxes in group.rank_slices for rank in ranks for box in boxes
    ]
    for rank, box in rank_boxes:
        parts = [box]
        for level in levels:
            parts, new = _overlap(parts, level), _remainder(parts, level)
            level += new
        if parts:
            raise LayoutError(
                f"a region is on too many ranks: got {parts[0]} of {name!r} once more on rank "
                f"{rank}, allowed on {copies} of these ranks; correct the engine's boxes"
            )
    for level in levels:
        if missing := uncovered(TensorSlice.full(group.shape), level):
            raise LayoutError(
                f"a region is on too few ranks: got {missing[0]} of {name!r} on fewer, allowed on "
                f"{copies} of these ranks; correct the engine's boxes"
            )


def _remainder(parts: Iterable[TensorSlice], level: list[TensorSlice]) -> list[TensorSlice]:
    return [rest for part in parts for rest in uncovered(part, level)]


def _overlap(parts: Iterable[TensorSlice], level: list[TensorSlice]) -> list[TensorSlice]:
    common = (part.intersection(box) for part in parts for box in level)
    return [box for box in common if box is not None]
