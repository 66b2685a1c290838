"""Tensor slices: axis-aligned boxes of a tensor's index space, in any number of dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import NamedTuple


# A named tuple, because plans hash and compare many of them.
class TensorSlice(NamedTuple):
    """A box of a tensor: first index and length in each dimension. A length of 0 makes it empty."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def full(cls, shape: Sequence[int]) -> TensorSlice:
        """The slice of a full tensor."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def stop(self) -> tuple[int, ...]:
        """One past the last index in each dimension."""
        return tuple(first + length for first, length in zip(self.start, self.shape, strict=True))

    @property
    def volume(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def intersection(self, other: TensorSlice) -> TensorSlice | None:
        """The common part, None if there is none."""
        start = tuple(map(max, self.start, other.start))
        shape = tuple(b - a for a, b in zip(start, map(min, self.stop, other.stop), strict=True))
        return TensorSlice(start, shape) if all(length > 0 for length in shape) else None

    def contains(self, other: TensorSlice) -> bool:
        """True if every element of the other slice lies in this one; an empty one lies in any."""
        return other.volume == 0 or self.intersection(other) == other

    def difference(self, other: TensorSlice) -> list[TensorSlice]:
        """This slice without the other: disjoint non-empty boxes, at most two per dimension."""
        common = self.intersection(other)
        if common is None:
            return [self] if self.volume else []
        parts = []
        start, stop = list(self.start), list(self.stop)
        for dim, (first, last) in enumerate(zip(common.start, common.stop, strict=True)):
            for low, high in ((start[dim], first), (last, stop[dim])):
                if low < high:
                    shape = [b - a for a, b in zip(start, stop, strict=True)]
                    shape[dim] = high - low
                    parts.append(TensorSlice((*start[:dim], low, *start[dim + 1 :]), tuple(shape)))
            # Later dimensions cut only what lies inside `common` in this one.
            start[dim], stop[dim] = first, last
        return parts

    def slices_in(self, outer: TensorSlice) -> tuple[slice, ...]:
        """Python slices that select this box in a tensor with the elements of the outer box."""
        return tuple(
            slice(first - origin, first - origin + length)
            for first, length, origin in zip(self.start, self.shape, outer.start, strict=True)
        )


def shard_slice(shape: Sequence[int], dim: int, index: int, num_parts: int) -> TensorSlice:
    """Part `index` of a tensor cut along one dimension into parts of ceil(length / num_parts).

    The last parts may be shorter or empty.
    """
    # As torch's `Shard(dim)` cuts. Tensor parallelism is the case in which the length divides.
    length = shape[dim]
    part = -(-length // num_parts)
    first = min(index * part, length)
    start, part_shape = [0] * len(shape), list(shape)
    start[dim], part_shape[dim] = first, min(part, length - first)
    return TensorSlice(tuple(start), tuple(part_shape))


def uncovered(box: TensorSlice, boxes: Iterable[TensorSlice]) -> list[TensorSlice]:
    """The part of a box that no other box covers, as disjoint boxes."""
    remaining = [box] if box.volume else []
    for other in boxes:
        if not remaining:
            break
        remaining = [part for piece in remaining for part in piece.difference(other)]
    return remaining


def are_disjoint(boxes: Sequence[TensorSlice]) -> bool:
    """True if no element lies in two of the boxes."""
    return all(boxes[i].intersection(boxes[j]) is None for i in range(len(boxes)) for j in range(i))


def covers(boxes: Sequence[TensorSlice], box: TensorSlice) -> bool:
    """True if the union of the boxes is exactly the box."""
    return all(box.contains(part) for part in boxes) and not uncovered(box, boxes)
