"""Which rank holds which parts of which tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_runtime.reshard.boxes import Box, uncovered
from rlhf_runtime.reshard.errors import LayoutError


class Piece(NamedTuple):
    """A part of a tensor that a rank holds."""

    name: str
    """The tensor's canonical (Hugging Face) name."""
    box: Box
    """Where the part lies in the full tensor; may be empty."""


@dataclass(frozen=True)
class Layout:
    """The pieces of every rank of a world. Checked when made; says nothing about dtypes.

    Several ranks may hold the same elements (replicas); a rank may hold several pieces of a tensor.

    Raises:
        LayoutError: a piece reaches beyond its tensor, names no tensor or has another number of
            dimensions, or a part of a tensor is held by nobody.
    """

    shapes: Mapping[str, tuple[int, ...]]
    """The full shape of every tensor."""
    pieces: tuple[tuple[Piece, ...], ...]
    """The pieces of each rank."""

    def __post_init__(self) -> None:
        self._check_pieces()
        self._check_coverage()

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.pieces)

    def num_elements(self, rank: int) -> int:
        """Elements that a rank holds."""
        return sum(piece.box.volume for piece in self.pieces[rank])

    def holders(self) -> dict[str, dict[Box, tuple[int, ...]]]:
        """The distinct non-empty boxes of every tensor, and the ascending ranks that hold each."""
        holders: dict[str, dict[Box, list[int]]] = {name: {} for name in self.shapes}
        for rank, pieces in enumerate(self.pieces):
            for name, box in pieces:
                if 0 not in box.shape:
                    holders[name].setdefault(box, []).append(rank)
        return {
            name: {box: tuple(dict.fromkeys(ranks)) for box, ranks in boxes.items()}
            for name, boxes in holders.items()
        }

    def _check_pieces(self) -> None:
        checked: set[tuple[tuple[int, ...], Box]] = set()
        for rank, pieces in enumerate(self.pieces):
            for name, box in pieces:
                shape = self.shapes.get(name)
                if shape is None:
                    raise LayoutError(
                        f"piece of an unknown tensor: got {name!r} on rank {rank}; add its full "
                        "shape to the layout or drop the piece"
                    )
                if (shape, box) not in checked:
                    _check_inside(rank, name, box, shape)
                    checked.add((shape, box))

    def _check_coverage(self) -> None:
        covered: set[tuple[tuple[int, ...], tuple[Box, ...]]] = set()
        for name, holders in self.holders().items():
            shape, boxes = self.shapes[name], tuple(holders)
            if (shape, boxes) in covered:
                continue
            if missing := uncovered(Box.whole(shape), boxes):
                raise LayoutError(
                    f"tensor {name!r} of shape {shape} is not fully held: nobody of "
                    f"{self.world_size} ranks holds {missing[0]}; add the missing pieces"
                )
            covered.add((shape, boxes))


def _check_inside(rank: int, name: str, box: Box, shape: tuple[int, ...]) -> None:
    fits = len(box.start) == len(box.shape) == len(shape) and all(
        first >= 0 and length >= 0 and first + length <= full
        for first, length, full in zip(box.start, box.shape, shape, strict=True)
    )
    if not fits:
        raise LayoutError(
            f"piece outside its tensor: got {box} of {name!r} on rank {rank}, allowed inside shape "
            f"{shape}; leave padding out and use the full tensor's indices"
        )
