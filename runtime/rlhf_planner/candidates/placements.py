"""The family of placements that a search compares. Pure.

Placement units: every role with a model, plus one for each role's generation. Roles that copy
weights form one unit; beyond MAX_UNITS the rest share one. Units are partitioned into sets in every
way. The sets of a pool get consecutive devices, in every composition of the pool's devices; larger
sets come first. In addition: generation on all devices of a pool, next to every partition of the
other units.

Devices are counted in blocks, the smallest with which the family is small enough.

Source: HybridFlow (arXiv 2409.19256), algorithm 1, partitions models into sets and devices among
these; ReaL (arXiv 2406.14088), section 4, gives each call devices of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod
from typing import NamedTuple, TypeVar

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

T = TypeVar("T")


def set_partitions(items: Sequence[T]) -> Iterator[tuple[tuple[T, ...], ...]]:
    """All partitions of items into sets; items and sets keep their first order.

    Their number is Bell's: 1, 2, 5, 15, 52, 203 for one item and more.
    """
    if not items:
        yield ()
        return
    *others, last = items
    for partition in set_partitions(others):
        for number, part in enumerate(partition):
            yield (*partition[:number], (*part, last), *partition[number + 1 :])
        yield (*partition, (last,))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ordered sums of `parts` positive integers that give a total."""
    if parts == 0 or total < parts:
        if parts == total:
            yield ()
        return
    for cuts in combinations(range(1, total), parts - 1):
        bounds = (0, *cuts, total)
        yield tuple(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))


def count_compositions(total: int, parts: int) -> int:
    """The number of compositions."""
    if parts == 0 or total < parts:
        return int(parts == total)
    return comb(total - 1, parts - 1)


# Limit of units that are placed separately: 6 have 203 partitions into sets, 8 have 4,140.
MAX_UNITS = 6

# Limit of compared placements; each takes about a tenth of a millisecond.
MAX_PLACEMENTS = 10_000


class PlacementUnit(NamedTuple):
    """A holder of devices: roles that must share them, or the generation of a role."""

    roles: tuple[str, ...]
    generates: bool = False
    """True for the generation of its only role, False for the model."""


Sets = tuple[tuple[PlacementUnit, ...], ...]


@dataclass(frozen=True)
class _Blocks:
    """The blocks of devices that sets of a pool are made of."""

    # Devices of a block, by pool.
    sizes: Mapping[str, int]
    pools: tuple[Pool, ...]

    def num_blocks(self, pool: Pool) -> int:
        return pool.num_devices // self.sizes[pool.name]


def placements(
    problem: PlanningProblem, max_placements: int = MAX_PLACEMENTS
) -> Iterator[JobStrategy]:
    """Every placement of the family, a strategy of which only the devices are known; each uses all
    devices of the pools that it uses.

    Args:
        max_placements: limit of placements; blocks of devices are larger if there would be more.
    """
    units = placement_units(problem)
    engines = [unit for unit in units if unit.generates]
    role_units = [unit for unit in units if not unit.generates]
    blocks = _blocks(problem.pools, units, max_placements)
    for sets, pools in _assignments(units, problem.pools):
        for meshes in _meshes(sets, pools, blocks):
            yield _placement(problem, sets, meshes)
    if len(engines) == 1 and len(role_units) > 1:
        for sets, pools in _assignments(role_units, problem.pools):
            # With one set this is the colocated placement, which the first loop has.
            if len(sets) > 1:
                for meshes in _meshes(sets, pools, blocks):
                    yield _placement(problem, sets, meshes)


def block_sizes(
    problem: PlanningProblem, max_placements: int = MAX_PLACEMENTS
) -> Mapping[str, int]:
    """Devices of a block, by pool; arguments as for `placements`."""
    return _blocks(problem.pools, placement_units(problem), max_placements).sizes


def mesh_sizes(problem: PlanningProblem, max_placements: int = MAX_PLACEMENTS) -> dict[str, range]:
    """Device counts that a set of a pool may have, by pool; arguments as for `placements`."""
    sizes = block_sizes(problem, max_placements)
    return {
        pool.name: range(sizes[pool.name], pool.num_devices + 1, sizes[pool.name])
        for pool in problem.pools
    }


def placement_units(problem: PlanningProblem) -> tuple[PlacementUnit, ...]:
    """The units that are placed separately: first the roles, then generation."""
    copied: dict[str, str] = {role: role for role in problem.models}
    # Roles that copy weights must share devices (`check_copies`): the target's set joins the
    # source's.
    for graph in problem.graphs.values():
        for call in graph.calls_of_kind(CallKind.COPY):
            target, source = copied[str(call.role)], copied[str(call.copied_role)]
            copied = {role: source if to == target else to for role, to in copied.items()}
    groups = [
        tuple(role for role in copied if copied[role] == first)
        for first in dict.fromkeys(copied.values())
    ]
    generating = [role for role, facts in problem.models.items() if facts.generates]
    engines = [PlacementUnit((role,), generates=True) for role in generating]
    return (*_merged(problem, groups, max(1, MAX_UNITS - len(engines))), *engines)


def _merged(
    problem: PlanningProblem, groups: Sequence[tuple[str, ...]], max_units: int
) -> Iterator[PlacementUnit]:
    """Merge the last groups if there are more than a limit."""
    # Roles that are never trained take the least time, so sharing devices costs them least.
    order = sorted(groups, key=lambda roles: not any(problem.models[r].is_trained for r in roles))
    yield from map(PlacementUnit, order[: max_units - 1])
    if rest := order[max_units - 1 :]:
        yield PlacementUnit(tuple(role for roles in rest for role in roles))


def _blocks(pools: Sequence[Pool], units: Sequence[PlacementUnit], max_placements: int) -> _Blocks:
    """The smallest blocks with which there are few enough placements; else one block per pool."""
    sizes = [_units(pool) for pool in pools]
    finest = max(map(len, sizes))
    # Placements are counted instead of listed: their number depends only on the sets per pool.
    counts = Counter(_parts(chosen, pools) for _, chosen in _assignments(units, pools))
    for step in range(finest):
        block_sizes_ = {
            pool.name: of_pool[min(step, len(of_pool) - 1)]
            for pool, of_pool in zip(pools, sizes, strict=True)
        }
        blocks = _Blocks(block_sizes_, tuple(pools))
        num_blocks = [blocks.num_blocks(pool) for pool in pools]
        total = sum(
            number * prod(map(_count_compositions, num_blocks, parts))
            for parts, number in counts.items()
        )
        if total <= max_placements:
            return blocks
    return blocks


def _parts(chosen: Sequence[Pool], pools: Sequence[Pool]) -> tuple[int, ...]:
    """Number of sets in each pool."""
    names = [pool.name for pool in chosen]
    return tuple(names.count(pool.name) for pool in pools)


def _count_compositions(num_blocks: int, sets: int) -> int:
    """Ways to share out the blocks of a pool; one if it has no sets."""
    return count_compositions(num_blocks, sets) if sets else 1


def _units(pool: Pool) -> list[int]:
    """Possible sizes of a block: a divisor of a node's devices, or full nodes. Ascending."""
    per_node, nodes = pool.devices_per_node, pool.nodes
    within = [size for size in range(1, per_node + 1) if per_node % size == 0]
    full_nodes = [per_node * count for count in range(2, nodes + 1) if nodes % count == 0]
    return [*within, *full_nodes]


def _assignments(
    units: Sequence[PlacementUnit], pools: Sequence[Pool]
) -> Iterator[tuple[Sets, tuple[Pool, ...]]]:
    """Every partition of units into sets, with a pool for each set; pools may stay empty."""
    for sets in set_partitions(tuple(units)):
        for chosen in product(pools, repeat=len(sets)):
            # Weights cannot move between pools.
            if _in_one_pool(sets, chosen):
                yield sets, chosen


def _in_one_pool(sets: Sets, pools: Sequence[Pool]) -> bool:
    """True if all roles generate in the pool that holds their model."""
    pool_of = {
        (role, unit.generates): pool.name
        for set_, pool in zip(sets, pools, strict=True)
        for unit in set_
        for role in unit.roles
    }
    return all(
        pool_of[role, False] == pool for (role, generates), pool in pool_of.items() if generates
    )


def _meshes(sets: Sets, pools: Sequence[Pool], blocks: _Blocks) -> Iterator[tuple[Mesh, ...]]:
    """Every way in which sets share out the devices of their pools."""
    by_pool = [
        [number for number, _ in enumerate(sets) if pools[number] == pool] for pool in blocks.pools
    ]
    choices = [
        tuple(compositions(blocks.num_blocks(pool), len(numbers))) if numbers else ((),)
        for pool, numbers in zip(blocks.pools, by_pool, strict=True)
    ]
    for chosen in product(*choices):
        meshes: dict[int, Mesh] = {}
        for pool, numbers, sizes in zip(blocks.pools, by_pool, chosen, strict=True):
            first, block = 0, blocks.sizes[pool.name]
            # Sets with most devices come first, so that they lie within nodes where possible; equal
            # ones in their own order.
            for number, size in sorted(
                zip(numbers, sizes, strict=True), key=lambda pair: (-pair[1], pair[0])
            ):
                meshes[number] = Mesh(pool=pool.name, first_rank=first, data=size * block)
                first += size * block
        yield tuple(meshes[number] for number, _ in enumerate(sets))


def _placement(problem: PlanningProblem, sets: Sets, meshes: Sequence[Mesh]) -> JobStrategy:
    """The placement of sets; roles whose generation is in no set generate on all of their pool."""
    devices = {
        (role, unit.generates): mesh
        for set_, mesh in zip(sets, meshes, strict=True)
        for unit in set_
        for role in unit.roles
    }
    everywhere = {pool.name: Mesh(pool=pool.name, data=pool.num_devices) for pool in problem.pools}
    return JobStrategy(
        {role: RoleStrategy(devices[role, False]) for role in problem.models},
        {
            role: EngineStrategy(devices.get((role, True), everywhere[devices[role, False].pool]))
            for role, facts in problem.models.items()
            if facts.generates
        },
    )
