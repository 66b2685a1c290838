"""Meshes of a world of processes, for scenarios."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from rlhf_api.mesh import Mesh
from rlhf_runtime.engines.parallel import ParallelContext, make_contexts
from rlhf_runtime.engines.world import World


def mesh_of(first_rank: int, data: int, tensor: int = 1) -> Mesh:
    """Consecutive ranks of a pool."""
    return Mesh(pool="pool", first_rank=first_rank, data=data, tensor=tensor)


@cache
def contexts_of(world: World, *meshes: Mesh) -> Mapping[Mesh, ParallelContext]:
    """The contexts of meshes that a rank is in. Collective over the world. They are kept for the
    scenarios that follow: each group has threads, and no scenario ends them."""
    return make_contexts(meshes, world)


def part_of(world: World, mesh: Mesh) -> ParallelContext | None:
    """A mesh, or None on ranks that are not in it. Collective over the world."""
    return contexts_of(world, mesh).get(mesh)


def parallel_of(world: World) -> ParallelContext:
    """The whole world as one mesh along `data`. Collective."""
    parallel = part_of(world, mesh_of(0, world.size))
    assert parallel is not None
    return parallel


def alone(world: World) -> ParallelContext:
    """This rank as a mesh of its own. Collective: all ranks make those of all."""
    (parallel,) = contexts_of(world, *(mesh_of(rank, 1) for rank in range(world.size))).values()
    return parallel
