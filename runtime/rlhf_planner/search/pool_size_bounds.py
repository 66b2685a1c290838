"""Lower bounds of a step on a number of devices, whatever the placement. Pure.

Most sizes of the pools are ruled out by these bounds, without a search. A call's lower bound is its
time on the fastest device count that any placement allows, and its work is at least its minimum of
device-seconds. So

    step >= critical path, each call at its minimum of seconds
    step >= sum over calls of their minimum of device-seconds / devices
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import Pool
from rlhf_planner.baselines.realhf import real_heuristic
from rlhf_planner.bounds.calls import NONE, CallTimeBounds
from rlhf_planner.bounds.step import OFF_RANKS, Seconds
from rlhf_planner.candidates.completions import cuts, engine_tensors
from rlhf_planner.candidates.placements import PlacementUnit, mesh_sizes, placement_units
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.placement.strategy import EngineStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem, RoleSpec
from rlhf_planner.search.branch_and_bound import call_time_bounds
from rlhf_planner.search.pool_size import num_devices


@dataclass(frozen=True, eq=False)
class PoolSizeBounds:
    """Bounds for all sizes of a problem's pools."""

    problem: PlanningProblem
    """The problem with all devices."""
    hardware: Mapping[str, Hardware]
    """Hardware of each pool's devices."""

    def step_seconds(
        self, part: PlanningProblem, block_devices: Mapping[str, int] | None = None
    ) -> float:
        """Bound a step on fewer devices; infinite if a role fits nowhere.

        Args:
            part: the problem with fewer devices.
            block_devices: as for `placements`.
        """
        fastest: dict[str, float] = {}
        work: dict[str, float] = {}
        for name, sizes in _family_sizes(part, block_devices).items():
            for size in sizes:
                for call, seconds in self._on_size(name, size).items():
                    fastest[call] = min(seconds, fastest.get(call, inf))
                    work[call] = min(size * seconds, work.get(call, inf))
        # A call without a time fits on no number of devices.
        if not all(call in fastest for call in self.times.computed_calls):
            return inf
        shares = (
            self.times.graph.expected_count(call) * device_seconds
            for call, device_seconds in work.items()
        )
        # Both bounds hold: the critical path with each call on its fastest device count, and the
        # total work, each call on its most efficient device count, spread over all devices.
        return max(self.times.steps.critical_path(fastest), sum(shares) / num_devices(part.pools))

    def busy_seconds(self, units: Iterable[PlacementUnit], pool: str, devices: int) -> float:
        """Bound the calls that units make in a step on some devices of a pool; infinite if one of
        them cannot run there."""
        seconds, graph = self._on_size(pool, devices), self.times.graph
        return sum(
            graph.expected_count(call) * seconds.get(call, inf)
            for unit in units
            for call in self._calls_of_units[unit]
        )

    @cached_property
    def _calls_of_units(self) -> Mapping[PlacementUnit, Sequence[str]]:
        """Sites of the calls on ranks that units make in a step."""
        units = placement_units(self.problem)
        calls: dict[PlacementUnit, list[str]] = {unit: [] for unit in units}
        for call in self.times.graph.calls:
            role, generates = call.role or self.problem.policy, call.kind is CallKind.GENERATE
            for unit in units:
                if (
                    call.kind not in OFF_RANKS
                    and role in unit.roles
                    and unit.generates is generates
                ):
                    calls[unit].append(call.id)
        return calls

    @cached_property
    def times(self) -> CallTimeBounds:
        """Bounds of calls."""
        return call_time_bounds(self.problem, self.hardware)

    @cached_property
    def _cache(self) -> dict[tuple[str, int], Seconds]:
        # Bounds depend on pool and device count only, so all sizes of the pools share them.
        return {}

    def _on_size(self, pool: str, size: int) -> Seconds:
        """Bounds of the calls of all roles on a number of devices; calls that cannot run there are
        left out."""
        if (pool, size) not in self._cache:
            self._cache[pool, size] = self._compute(pool, size)
        return self._cache[pool, size]

    def _compute(self, pool_name: str, size: int) -> Seconds:
        pool = next(pool for pool in self.problem.pools if pool.name == pool_name)
        bounds: dict[str, float] = {}
        for role, facts in self.problem.models.items():
            for seconds in self._strategies(role, facts, pool, size):
                for call, call_seconds in (seconds or {}).items():
                    bounds[call] = min(call_seconds, bounds.get(call, inf))
        return bounds

    def _strategies(
        self, role: str, facts: RoleSpec, pool: Pool, size: int
    ) -> Iterator[Seconds | None]:
        """Bounds of a role's calls for every cut and size of engines on any of a pool's devices."""
        # These devices start at the first of a node, so calls cross as few nodes as possible. This
        # is a lower bound if networks between nodes are not faster than links within them.
        mesh = Mesh(pool=pool.name, data=size)
        # Feasible cuts depend on the first device, as tensor groups must not cross nodes. The
        # pattern repeats from node to node.
        meshes = [
            mesh.model_copy(update={"first_rank": first})
            for first in range(min(pool.devices_per_node, pool.num_devices - size + 1))
        ]
        possible = (cut for m in meshes for cut in cuts(self.problem, role, RoleStrategy(m)))
        for cut in dict.fromkeys(possible):
            yield self.times.role_seconds(role, RoleStrategy(mesh).with_cut(cut))
        if facts.generates:
            tensors = (engine_tensors(self.problem, role, m) for m in meshes)
            for tensor in dict.fromkeys(tensor for options in tensors for tensor in options):
                # With the largest cache and no columns from other nodes: no plan is faster.
                yield self.times.engine_seconds(role, EngineStrategy(mesh, tensor), NONE)


def _family_sizes(
    part: PlanningProblem, block_devices: Mapping[str, int] | None
) -> dict[str, set[int]]:
    """Device counts of all sets of the family, by pool."""
    sizes_of_pool = {name: {*sizes} for name, sizes in mesh_sizes(part, block_devices).items()}
    # The search adds the placement of ReaL's rule to the family (`search.py`), with other sets.
    if len(part.pools) == 1:
        for mesh in real_heuristic(part).devices:
            sizes_of_pool[mesh.pool].add(mesh.num_devices)
    return sizes_of_pool
