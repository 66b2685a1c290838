"""The family of placements that a search compares. Pure.

Placement units: every role with a model, plus one for each role's generation. Roles that copy
weights form one unit; beyond MAX_UNITS the rest share one. Units are partitioned into sets in every
way. The sets of a pool get consecutive devices, in every composition of the pool's devices; larger
sets come first, in small pools also in every other order if nodes are no powers of two, as another
one may tear fewer tensor groups. In addition: generation on all devices of a pool, next to every
partition of the other units.

Devices are counted in blocks, the smallest with which the family is small enough.

Source: HybridFlow (arXiv 2409.19256), algorithm 1, partitions models into sets and devices among
these; ReaL (arXiv 2406.14088), section 4, gives each call devices of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations, product
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


def sums(total: int, sizes: Sequence[Sequence[int]]) -> Iterator[tuple[int, ...]]:
    """All sums of one number of each sequence that give a total.

    Args:
        total: the sum.
        sizes: positive integers, ascending.
    """
    if not sizes:
        if total == 0:
            yield ()
        return
    first, *rest = sizes
    if not all(rest):
        return
    least, most = sum(numbers[0] for numbers in rest), sum(numbers[-1] for numbers in rest)
    for size in first:
        # The others take what is left, so most sizes lead to nothing.
        if least <= total - size <= most:
            for others in sums(total - size, rest):
                yield (size, *others)


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ordered sums of `parts` positive integers that give a total."""
    return sums(total, [range(1, total + 1)] * parts)


def count_compositions(total: int, parts: int) -> int:
    """The number of compositions."""
    if parts == 0 or total < parts:
        return int(parts == total)
    return comb(total - 1, parts - 1)


# Limit of units that are placed separately: 6 have 203 partitions into sets, 8 have 4,140.
MAX_UNITS = 6

# Limit of compared placements; each takes about a tenth of a millisecond.
MAX_PLACEMENTS = 10_000

# Limit of blocks up to which sets are tried in every order, if nodes are no powers of two.
MAX_ORDERED_BLOCKS = 8


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


# True if the units of a set may have a number of devices of a pool, with the generation of other
# sets' roles on all of the pool's.
Allows = Callable[[Sequence[PlacementUnit], Pool, int, Sequence[PlacementUnit]], bool]


def allow_all(
    units: Sequence[PlacementUnit], pool: Pool, devices: int, everywhere: Sequence[PlacementUnit]
) -> bool:
    """Allow every set."""
    return True


def placements(
    problem: PlanningProblem,
    max_placements: int = MAX_PLACEMENTS,
    block_devices: Mapping[str, int] | None = None,
    allows: Allows = allow_all,
) -> Iterator[JobStrategy]:
    """Every placement of the family, a strategy of which only the devices are known; each uses all
    devices of the pools that it uses.

    Args:
        max_placements: limit of placements; blocks of devices are larger if there would be more.
        block_devices: devices of a block, by pool. None: as the limit says.
        allows: leaves out placements with other sets.
    """
    units = placement_units(problem)
    engines = [unit for unit in units if unit.generates]
    role_units = [unit for unit in units if not unit.generates]
    if block_devices is None:
        blocks = _blocks(problem.pools, units, max_placements)
    else:
        blocks = _Blocks(block_devices, problem.pools)
    for sets, pools in _assignments(units, problem.pools):
        for meshes in _meshes(sets, pools, blocks, (), allows):
            yield _placement(problem, sets, meshes)
    if len(engines) == 1 and len(role_units) > 1:
        for sets, pools in _assignments(role_units, problem.pools):
            # With one set this is the colocated placement, which the first loop has.
            if len(sets) > 1:
                for meshes in _meshes(sets, pools, blocks, engines, allows):
                    yield _placement(problem, sets, meshes)


def block_sizes(
    problem: PlanningProblem, max_placements: int = MAX_PLACEMENTS
) -> Mapping[str, int]:
    """Devices of a block, by pool; arguments as for `placements`."""
    return _blocks(problem.pools, placement_units(problem), max_placements).sizes


def mesh_sizes(
    problem: PlanningProblem, block_devices: Mapping[str, int] | None = None
) -> dict[str, range]:
    """Device counts that a set of a pool may have, by pool; arguments as for `placements`."""
    sizes = block_sizes(problem) if block_devices is None else block_devices
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


def _meshes(
    sets: Sets,
    pools: Sequence[Pool],
    blocks: _Blocks,
    everywhere: Sequence[PlacementUnit],
    allows: Allows,
) -> Iterator[tuple[Mesh, ...]]:
    """Every way in which sets share out the devices of their pools, with generation of other sets'
    roles on all of them."""
    by_pool = [
        [number for number, _ in enumerate(sets) if pools[number] == pool] for pool in blocks.pools
    ]

    def allowed_sizes(number: int, pool: Pool, most: int) -> list[int]:
        block = blocks.sizes[pool.name]
        every = range(1, most + 1)
        return [n for n in every if allows(sets[number], pool, n * block, everywhere)]

    choices: list[tuple[tuple[int, ...], ...]] = []
    for pool, numbers in zip(blocks.pools, by_pool, strict=True):
        total = blocks.num_blocks(pool)
        most = total - len(numbers) + 1
        of_sets = [allowed_sizes(number, pool, most) for number in numbers]
        choices.append(tuple(sums(total, of_sets)) if numbers else ((),))
    for chosen in product(*choices):
        layouts = [
            tuple(_layouts(pool, blocks, dict(zip(numbers, sizes, strict=True))))
            for pool, numbers, sizes in zip(blocks.pools, by_pool, chosen, strict=True)
        ]
        for layout in product(*layouts):
            meshes = {number: mesh for of_pool in layout for number, mesh in of_pool.items()}
            yield tuple(meshes[number] for number, _ in enumerate(sets))


def _layouts(pool: Pool, blocks: _Blocks, sizes: Mapping[int, int]) -> Iterator[Mapping[int, Mesh]]:
    """Consecutive devices of a pool for sets with some numbers of blocks."""
    # Sets with most devices come first, so that they lie within nodes where possible; equal ones in
    # their own order.
    first = sorted(sizes, key=lambda number: (-sizes[number], number))
    layout = _layout(pool, blocks, sizes, first)
    yield layout
    per_node = pool.devices_per_node
    # Powers of two in this order tear no tensor group if nodes are powers of two, too.
    if per_node.bit_count() == 1 or blocks.num_blocks(pool) > MAX_ORDERED_BLOCKS:
        return
    if any(_is_torn(mesh, per_node) for mesh in layout.values()):
        for order in islice(permutations(first), 1, None):
            yield _layout(pool, blocks, sizes, order)


def _layout(
    pool: Pool, blocks: _Blocks, sizes: Mapping[int, int], order: Sequence[int]
) -> Mapping[int, Mesh]:
    meshes: dict[int, Mesh] = {}
    first, block = 0, blocks.sizes[pool.name]
    for number in order:
        meshes[number] = Mesh(pool=pool.name, first_rank=first, data=sizes[number] * block)
        first += sizes[number] * block
    return meshes


def _is_torn(mesh: Mesh, per_node: int) -> bool:
    """True if devices that are no full nodes lie on several."""
    ranks = mesh.ranks
    is_aligned = ranks.start % per_node == 0 and len(ranks) % per_node == 0
    return not is_aligned and ranks.start // per_node != (ranks.stop - 1) // per_node


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
