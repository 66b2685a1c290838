"""Which rank holds which parts of which tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import NamedTuple

from rlhf_runtime.reshard.errors import LayoutError
from rlhf_runtime.reshard.slices import TensorSlice, uncovered


class Piece(NamedTuple):
    """A part of a tensor that a rank holds."""

    name: str
    """The tensor's canonical (Hugging Face) name."""
    box: TensorSlice
    """Where the part lies in the full tensor; may be empty."""


Pieces = tuple[Piece, ...]
"""What one rank holds."""


class Share(NamedTuple):
    """What some ranks hold of a tensor, all the same."""

    ranks: tuple[int, ...]
    boxes: tuple[TensorSlice, ...]
    """Not empty, in the order of the ranks' pieces."""


@dataclass(frozen=True)
class TensorGroup:
    """Tensors of one shape that all ranks hold alike, such as a projection of every layer."""

    names: tuple[str, ...]
    """In the order of their names."""
    shape: tuple[int, ...]
    shares: tuple[Share, ...]
    """Of disjoint ranks. Ranks that hold nothing are in none."""

    @cached_property
    def holders(self) -> dict[TensorSlice, tuple[int, ...]]:
        """The distinct boxes, and the ascending ranks that hold each."""
        found: dict[TensorSlice, list[int]] = {}
        for ranks, boxes in self.shares:
            for box in dict.fromkeys(boxes):
                found.setdefault(box, []).extend(ranks)
        return {box: tuple(sorted(ranks)) for box, ranks in found.items()}

    @property
    def is_disjoint(self) -> bool:
        """Whether no element lies in two different boxes; they cover the tensor."""
        return sum(box.volume for box in self.holders) == prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The pieces of every rank of a world. Checked when made; says nothing about dtypes.

    Several ranks may hold the same elements (replicas); a rank may hold several pieces of a tensor.
    Ranks that hold the same may share one tuple of pieces: it is then read only once.

    Raises:
        LayoutError: a piece reaches beyond its tensor, names no tensor or has another number of
            dimensions, or a part of a tensor is held by nobody.
    """

    shapes: Mapping[str, tuple[int, ...]]
    """The full shape of every tensor."""
    pieces: tuple[Pieces, ...]
    """The pieces of each rank."""

    def __post_init__(self) -> None:
        for group in self.groups:
            self._check_inside(group)
            self._check_coverage(group)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.pieces)

    def num_elements(self, rank: int) -> int:
        """Elements that a rank holds."""
        return sum(piece.box.volume for piece in self.pieces[rank])

    @cached_property
    def groups(self) -> tuple[TensorGroup, ...]:
        """The tensors by how they are held, ordered by their first names."""
        holdings = self._distinct_holdings()
        held: dict[str, list[tuple[int, TensorSlice]]] = {name: [] for name in sorted(self.shapes)}
        for number, (pieces, ranks) in enumerate(holdings):
            for name, box in pieces:
                if name not in held:
                    raise LayoutError(
                        f"piece of an unknown tensor: got {name!r} on rank {ranks[0]}; add its "
                        "full shape to the layout or drop the piece"
                    )
                if 0 not in box.shape:
                    held[name].append((number, box))
        alike: dict[tuple[tuple[int, ...], tuple[tuple[int, TensorSlice], ...]], list[str]] = {}
        for name, boxes in held.items():
            alike.setdefault((tuple(self.shapes[name]), tuple(boxes)), []).append(name)
        ranks_of = [ranks for _, ranks in holdings]
        return tuple(
            TensorGroup(tuple(names), shape, _shares(boxes, ranks_of))
            for (shape, boxes), names in alike.items()
        )

    def _distinct_holdings(self) -> list[tuple[Pieces, tuple[int, ...]]]:
        """What some rank holds, and the ascending ranks that hold just that."""
        by_identity: dict[int, list[int]] = {}
        for rank, pieces in enumerate(self.pieces):
            by_identity.setdefault(id(pieces), []).append(rank)
        ranks_of: dict[Pieces, list[int]] = {}
        for ranks in by_identity.values():
            ranks_of.setdefault(self.pieces[ranks[0]], []).extend(ranks)
        return [(pieces, tuple(sorted(ranks))) for pieces, ranks in ranks_of.items()]

    def _check_inside(self, group: TensorGroup) -> None:
        for ranks, boxes in group.shares:
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
                f"tensor {group.names[0]!r} of shape {group.shape} is not fully held: nobody of "
                f"{self.world_size} ranks holds {missing[0]}; add the missing pieces"
            )


def alike(
    source: Layout, target: Layout
) -> Iterator[tuple[tuple[str, ...], TensorGroup, TensorGroup]]:
    """The target's tensors by how they are held in both layouts, in a fixed order.

    The source has all of them, in the same shapes.
    """
    held_as = {name: group for group in source.groups for name in group.names}
    for wanted in target.groups:
        by_source: dict[int, list[str]] = {}
        for name in wanted.names:
            by_source.setdefault(id(held_as[name]), []).append(name)
        for names in by_source.values():
            yield tuple(names), held_as[names[0]], wanted


def _shares(
    boxes: tuple[tuple[int, TensorSlice], ...], ranks_of: list[tuple[int, ...]]
) -> tuple[Share, ...]:
    by_holding: dict[int, list[TensorSlice]] = {}
    for number, box in boxes:
        by_holding.setdefault(number, []).append(box)
    return tuple(Share(ranks_of[number], tuple(held)) for number, held in by_holding.items())


def _is_inside(box: TensorSlice, shape: tuple[int, ...]) -> bool:
    return len(box.start) == len(box.shape) == len(shape) and all(
        first >= 0 and length >= 0 and first + length <= full
        for first, length, full in zip(box.start, box.shape, shape, strict=True)
    )
