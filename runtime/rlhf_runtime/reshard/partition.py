"""How what ranks want of a tensor falls apart over what ranks hold of it."""

from __future__ import annotations

from typing import NamedTuple

from rlhf_runtime.reshard.layout import TensorGroup
from rlhf_runtime.reshard.slices import TensorSlice


class Part(NamedTuple):
    """A part of a tensor, all of which the same ranks hold and the same others want."""

    box: TensorSlice
    holders: tuple[int, ...]
    """Ascending ranks."""
    wanted_by: tuple[int, ...]
    """Ascending ranks that do not hold it."""


class Partition(NamedTuple):
    """Everything that is wanted of a tensor."""

    local: tuple[tuple[int, TensorSlice], ...]
    """What ranks take from themselves."""
    parts: tuple[Part, ...]
    """What ranks take from others: disjoint boxes."""


Held = tuple[TensorSlice, tuple[int, ...]]
"""A box and the ascending ranks that hold it."""


def partition(source: TensorGroup, target: TensorGroup) -> Partition:
    """Cut the tensor along the boxes of source and target, and sort out who wants what from whom.

    A rank that holds all of a wanted box in one piece takes it uncut.
    """
    local: list[tuple[int, TensorSlice]] = []
    wanted: list[Held] = []
    for box, ranks in target.holders.items():
        able = {r for held, rs in source.holders.items() if held.contains(box) for r in rs}
        local.extend((rank, box) for rank in ranks if rank in able)
        if others := tuple(rank for rank in ranks if rank not in able):
            wanted.append((box, others))
    parts: list[Part] = []
    for box, holders in _atoms(source, [box for box, _ in wanted]):
        asking = {rank for outer, ranks in wanted if outer.contains(box) for rank in ranks}
        local.extend((rank, box) for rank in asking.intersection(holders))
        if others := tuple(sorted(asking.difference(holders))):
            parts.append(Part(box, holders, others))
    return Partition(tuple(sorted(local)), tuple(sorted(parts)))


def _atoms(source: TensorGroup, wanted: list[TensorSlice]) -> list[Held]:
    """The tensor in disjoint boxes, each inside or outside every box of source and target."""
    atoms: list[Held] = list(source.holders.items())
    if not source.is_disjoint:
        atoms = [(TensorSlice.full(source.shape), ())]
        for box, ranks in source.holders.items():
            atoms = _cut(atoms, box, ranks)
    for box in wanted:
        atoms = _cut(atoms, box)
    return atoms


def _cut(atoms: list[Held], box: TensorSlice, holders: tuple[int, ...] = ()) -> list[Held]:
    """Atoms cut along a box; those inside it have more holders."""
    cut: list[Held] = []
    for atom, ranks in atoms:
        common = atom.intersection(box)
        if common is None:
            cut.append((atom, ranks))
            continue
        cut.append((common, tuple(sorted({*ranks, *holders})) if holders else ranks))
        if common != atom:
            cut.extend((rest, ranks) for rest in atom.difference(common))
    return cut
