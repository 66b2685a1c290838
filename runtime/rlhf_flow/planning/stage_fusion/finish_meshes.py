"""Which engines may finish the last responses of a step. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import combinations, groupby

from rlhf_api.plan import Mesh

MOST_SETS = 4
"""Of more meshes than these not every set is kept free, but each by itself, and all."""


def finish_meshes(engines: Mesh, others: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Meshes of some neighbouring engines that leave calls' devices free, and of all engines where
    some calls are on none of their devices. Of neighbours that may all take part also the first
    half, quarter and so on: fewer read their weights less often, and more decode faster.

    Args:
        engines: all of them.
        others: meshes of calls that might begin while they finish.
    """
    needed = {_blocks(engines, mesh) for mesh in others}
    found: dict[Mesh, None] = {}
    if range(0) in needed:
        found[engines] = None
    shared = sorted(needed - {range(0)}, key=lambda blocks: (blocks.start, blocks.stop))
    for kept_free in _sets(shared):
        for blocks in _runs(_num_blocks(engines), kept_free):
            size = len(blocks)
            while size:
                found[_mesh_of(engines, blocks.start, size)] = None
                size //= 2
    return tuple(found)


def _sets(meshes: Sequence[range]) -> Iterator[tuple[range, ...]]:
    sizes = range(1, len(meshes) + 1)
    for size in sizes if len(meshes) <= MOST_SETS else (1, len(meshes)):
        yield from combinations(meshes, size)


def _runs(number: int, taken: Collection[range]) -> Iterator[range]:
    """Neighbouring blocks that none of these takes."""
    free = [block for block in range(number) if not any(block in each for each in taken)]
    for _, numbered in groupby(enumerate(free), key=lambda each: each[1] - each[0]):
        blocks = [block for _, block in numbered]
        yield range(blocks[0], blocks[-1] + 1)


def _block_size(engines: Mesh) -> int:
    """Ranks of the smallest group of engines that are neighbours: those between whose ranks others
    lie are together."""
    return engines.tensor * engines.tensor_stride


def _num_blocks(engines: Mesh) -> int:
    return engines.num_devices // _block_size(engines)


def _blocks(engines: Mesh, mesh: Mesh) -> range:
    """The blocks of engines of which a mesh has ranks."""
    if mesh.pool != engines.pool:
        return range(0)
    size, first = _block_size(engines), engines.first_rank
    start = max(0, (mesh.ranks.start - first) // size)
    stop = min(_num_blocks(engines), -((first - mesh.ranks.stop) // size))
    return range(start, stop) if start < stop else range(0)


def _mesh_of(engines: Mesh, block: int, number: int) -> Mesh:
    first = engines.first_rank + block * _block_size(engines)
    return engines.model_copy(update={"first_rank": first, "data": number * engines.tensor_stride})
