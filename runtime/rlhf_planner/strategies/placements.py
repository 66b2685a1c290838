"""Ways to part things into sets, and devices among them. Pure.

Where roles may be: the family of placements that are compared. Pure.

What has devices are the roles with a model, and apart from them the generation of each that
generates; roles that copy weights from each other are one, and so are the last of many roles. They
are parted into sets in every way.
A set has consecutive devices of a pool, which the sets of a pool share out among them in every way;
those with most come first, so that they lie within nodes where they can. Beside these: generation
on all devices of a pool, whatever sets the roles are in.

Devices are shared out in units, the smallest with which there are few enough placements.

Source: HybridFlow (arXiv 2409.19256), algorithm 1, parts models into sets and devices among these;
ReaL (arXiv 2406.14088), section 4, gives each call devices of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from math import comb, prod
from typing import NamedTuple, TypeVar

from rlhf_api.calls import CallKind
from rlhf_api.plan import Mesh, Pool
from rlhf_planner.placement.placement import CallPlace, RolePlace
from rlhf_planner.problem.problem import PlanningProblem

T = TypeVar("T")


def set_partitions(things: Sequence[T]) -> Iterator[tuple[tuple[T, ...], ...]]:
    """All ways to part things into sets; in each, things and sets are in their first order.

    There are Bell's number of them: 1, 2, 5, 15, 52, 203 for one thing and more.
    """
    if not things:
        yield ()
        return
    *others, last = things
    for partition in set_partitions(others):
        for number, part in enumerate(partition):
            yield (*partition[:number], (*part, last), *partition[number + 1 :])
        yield (*partition, (last,))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of so many positive ones, in every order."""
    if parts == 0 or total < parts:
        if parts == total:
            yield ()
        return
    for cuts in combinations(range(1, total), parts - 1):
        bounds = (0, *cuts, total)
        yield tuple(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))


def count_compositions(total: int, parts: int) -> int:
    """How many these are."""
    if parts == 0 or total < parts:
        return int(parts == total)
    return comb(total - 1, parts - 1)


MAX_TENANTS = 6
"""That are placed apart: with more there would be thousands of partitions."""

MAX_PLACEMENTS = 10_000
"""That are compared at most; each takes about a tenth of a millisecond."""

Placement = Mapping[str, RolePlace]
"""Where each role with a model is; cut along `data` only."""


class Tenant(NamedTuple):
    """What has devices: roles that must be on the same ones, or the generation of a role."""

    roles: tuple[str, ...]
    generates: bool = False
    """Whether it is the generation of its only role, and not what holds the model."""


Sets = tuple[tuple[Tenant, ...], ...]


@dataclass(frozen=True)
class _Shares:
    """How many units of each pool there are to share out."""

    units: Mapping[str, int]
    """Devices of a unit, by pool."""
    pools: tuple[Pool, ...]

    def num_units(self, pool: Pool) -> int:
        return pool.num_devices // self.units[pool.name]


def placements(problem: PlanningProblem, most: int = MAX_PLACEMENTS) -> Iterator[Placement]:
    """Every placement of the family; each uses all devices of the pools that it uses.

    Args:
        problem: what is planned.
        most: placements. Devices are shared out in larger units where there would be more.
    """
    parted = tenants(problem)
    engines = [tenant for tenant in parted if tenant.generates]
    together = [tenant for tenant in parted if not tenant.generates]
    shares = _shares(problem.pools, parted, most)
    for sets, pools in _assignments(parted, problem.pools):
        for meshes in _meshes(sets, pools, shares):
            yield _placement(problem, sets, meshes)
    if len(engines) == 1 and len(together) > 1:
        for sets, pools in _assignments(together, problem.pools):
            if len(sets) > 1:
                for meshes in _meshes(sets, pools, shares):
                    yield _placement(problem, sets, meshes)


def unit_devices(problem: PlanningProblem, most: int = MAX_PLACEMENTS) -> Mapping[str, int]:
    """Devices that are shared out together, by pool; arguments as above."""
    return _shares(problem.pools, tenants(problem), most).units


def mesh_sizes(problem: PlanningProblem, most: int = MAX_PLACEMENTS) -> dict[str, range]:
    """Devices of a pool that a set may have in some placement, for each pool; arguments as
    above."""
    units = unit_devices(problem, most)
    return {
        pool.name: range(units[pool.name], pool.num_devices + 1, units[pool.name])
        for pool in problem.pools
    }


def tenants(problem: PlanningProblem) -> tuple[Tenant, ...]:
    """What is placed by itself: first the roles, then generation."""
    copied: dict[str, str] = {role: role for role in problem.models}
    for graph in problem.graphs.values():
        for call in graph.calls_of_kind(CallKind.COPY):
            target, source = copied[str(call.role)], copied[str(call.copied_role)]
            copied = {role: source if to == target else to for role, to in copied.items()}
    groups = [
        tuple(role for role in copied if copied[role] == first)
        for first in dict.fromkeys(copied.values())
    ]
    generating = [role for role, facts in problem.models.items() if facts.generates]
    engines = [Tenant((role,), generates=True) for role in generating]
    return (*_joined(problem, groups, max(1, MAX_TENANTS - len(engines))), *engines)


def _joined(
    problem: PlanningProblem, groups: Sequence[tuple[str, ...]], most: int
) -> Iterator[Tenant]:
    """At most so many tenants: the rest of them are on the same devices, first those that are never
    trained, which take the least time."""
    order = sorted(groups, key=lambda roles: not any(problem.models[r].is_trained for r in roles))
    yield from map(Tenant, order[: most - 1])
    if rest := order[most - 1 :]:
        yield Tenant(tuple(role for roles in rest for role in roles))


def _shares(pools: Sequence[Pool], tenants: Sequence[Tenant], most: int) -> _Shares:
    """The smallest units with which there are few enough placements; one for each pool at most."""
    sizes = [_units(pool) for pool in pools]
    finest = max(map(len, sizes))
    counts = Counter(_parts(chosen, pools) for _, chosen in _assignments(tenants, pools))
    for step in range(finest):
        units = {
            pool.name: of_pool[min(step, len(of_pool) - 1)]
            for pool, of_pool in zip(pools, sizes, strict=True)
        }
        found = _Shares(units, tuple(pools))
        num_units = [found.num_units(pool) for pool in pools]
        total = sum(
            number * prod(map(_count_shares, num_units, parts)) for parts, number in counts.items()
        )
        if total <= most:
            return found
    return found


def _parts(chosen: Sequence[Pool], pools: Sequence[Pool]) -> tuple[int, ...]:
    """How many sets are in each pool."""
    names = [pool.name for pool in chosen]
    return tuple(names.count(pool.name) for pool in pools)


def _count_shares(units: int, sets: int) -> int:
    """Ways to share out the units of a pool; nobody has those of one without sets."""
    return count_compositions(units, sets) if sets else 1


def _units(pool: Pool) -> list[int]:
    """Devices that may be shared out together: as many on each node, or whole nodes. Ascending."""
    per_node, nodes = pool.devices_per_node, pool.nodes
    within = [size for size in range(1, per_node + 1) if per_node % size == 0]
    whole = [per_node * count for count in range(2, nodes + 1) if nodes % count == 0]
    return [*within, *whole]


def _assignments(
    tenants: Sequence[Tenant], pools: Sequence[Pool]
) -> Iterator[tuple[Sets, tuple[Pool, ...]]]:
    """Every way to part tenants into sets, and to give each set a pool; pools may be left over."""
    for sets in set_partitions(tuple(tenants)):
        for chosen in product(pools, repeat=len(sets)):
            if _in_one_pool(sets, chosen):
                yield sets, chosen


def _in_one_pool(sets: Sets, pools: Sequence[Pool]) -> bool:
    """Whether all roles generate in the pool that holds their model."""
    where = {
        (role, tenant.generates): pool.name
        for part, pool in zip(sets, pools, strict=True)
        for tenant in part
        for role in tenant.roles
    }
    return all(where[role, False] == pool for (role, generates), pool in where.items() if generates)


def _meshes(sets: Sets, pools: Sequence[Pool], shares: _Shares) -> Iterator[tuple[Mesh, ...]]:
    """Every way in which sets share out the devices of their pools."""
    by_pool = [
        [number for number, _ in enumerate(sets) if pools[number] == pool] for pool in shares.pools
    ]
    choices = [
        tuple(compositions(shares.num_units(pool), len(numbers))) if numbers else ((),)
        for pool, numbers in zip(shares.pools, by_pool, strict=True)
    ]
    for chosen in product(*choices):
        found: dict[int, Mesh] = {}
        for pool, numbers, sizes in zip(shares.pools, by_pool, chosen, strict=True):
            first, unit = 0, shares.units[pool.name]
            # Sets with most devices come first; equal ones in their own order.
            for number, size in sorted(
                zip(numbers, sizes, strict=True), key=lambda each: (-each[1], each[0])
            ):
                found[number] = Mesh(pool=pool.name, first_rank=first, data=size * unit)
                first += size * unit
        yield tuple(found[number] for number, _ in enumerate(sets))


def _placement(problem: PlanningProblem, sets: Sets, meshes: Sequence[Mesh]) -> Placement:
    """Where each role is; roles whose generation is in no set generate on all of their pool."""
    where = {
        (role, tenant.generates): CallPlace(mesh)
        for part, mesh in zip(sets, meshes, strict=True)
        for tenant in part
        for role in tenant.roles
    }
    everywhere = {
        pool.name: CallPlace(Mesh(pool=pool.name, data=pool.num_devices)) for pool in problem.pools
    }
    return {
        role: RolePlace(
            held := where[role, False],
            where.get((role, True), everywhere[held.mesh.pool]) if facts.generates else held,
        )
        for role, facts in problem.models.items()
    }
