"""Lower bounds of placements and of the spaces below them: times of calls within memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.plan import OffloadDepth
from rlhf_planner.bounds.calls import NONE, Calls, CallTimeBounds, fastest_of
from rlhf_planner.bounds.memory import BytesPerPhase, Capacity, Cells, MemoryBounds, capacity_of
from rlhf_planner.bounds.step import Seconds
from rlhf_planner.candidates.completions import engine_completions
from rlhf_planner.memory.offloading import offload_combinations
from rlhf_planner.placement.placement import device_groups
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.search_space import (
    Candidate,
    Dimension,
    SearchSpace,
    open_candidate,
)

# Cache sizes are rounded up to multiples of this, so that few different ones are priced.
CACHE_STEP_BYTES = 2**27


# Candidates of a role by depth, or of its engines, for the cells of a capacity.
Known = dict[tuple[Cells, str, OffloadDepth | None], tuple[Candidate, ...]]


@dataclass(frozen=True, eq=False)
class Relaxation:
    """Lower bounds of the strategies of one problem."""

    problem: PlanningProblem
    seconds: CallTimeBounds
    """Lower bounds of calls' times."""
    memory: MemoryBounds
    """Lower bounds of roles' memory."""

    def placement_bounds(self, placement: JobStrategy) -> Seconds | None:
        """Bound calls in a placement, each role as if it were alone. None: a model cannot be cut
        there, or an engine cannot be built."""
        bounds: dict[str, float] = {}
        for of_role in (
            *(self.seconds.role_seconds(*item) for item in placement.roles.items()),
            *(self.seconds.engine_seconds(*item, NONE) for item in placement.engines.items()),
        ):
            if of_role is None:
                return None
            bounds |= of_role
        return bounds

    def feasible_spaces(self, placement: JobStrategy) -> Iterator[SearchSpace]:
        """The pruned strategies of a placement that may be feasible, one space per way to offload
        roles."""
        for space in self.spaces(placement):
            pruned = space.pruned()
            if pruned is not None:
                yield pruned

    def spaces(self, placement: JobStrategy) -> Iterator[SearchSpace]:
        """All strategies of a placement, feasible or not; none if a model cannot be cut there, or
        an engine cannot be built."""
        crossing = self.seconds.crossing(placement)
        groups = device_groups(self.problem.pools, placement)
        # Many combinations share the depth of a role, and the phases of the devices.
        known: Known = {}
        for depths in offload_combinations(self.problem, groups):
            capacity = capacity_of(self.problem, groups, depths)
            domains = dict(self._domains(placement, capacity, crossing, known))
            # A dimension without candidates makes everything infeasible.
            if all(domains.values()):
                orders = self.seconds.steps.orders(placement, depths) if depths else ()
                yield SearchSpace(
                    placement,
                    tuple(domains),
                    tuple(domains.values()),
                    capacity,
                    crossing,
                    orders,
                )

    def space_bounds(self, space: SearchSpace) -> Seconds:
        """Bound calls in a propagated space."""
        bounds: dict[str, float] = {}
        for dimension, domain, free in zip(
            space.dimensions, space.domains, space.residual, strict=True
        ):
            bounds |= fastest_of(
                self._seconds(space, dimension.role, candidate, free) for candidate in domain
            )
        # Loads and offloads are in the seconds of the roles' candidates.
        return bounds | self._reshards(space)

    def _reshards(self, space: SearchSpace) -> dict[str, float]:
        """Bounds of reshards, for roles with one cut and one size of engines left."""
        # A reshard depends on the cut and on the engines. While one of them is open,
        # `StepTimeBounds.step_seconds` counts its dispatch only.
        bounds: dict[str, float] = {}
        strategies = {
            dimension: [candidate.strategy for candidate in domain]
            for dimension, domain in zip(space.dimensions, space.domains, strict=True)
        }
        for role in space.placement.engines:
            cuts = {s.cut for s in strategies[Dimension(role)] if isinstance(s, RoleStrategy)}
            first, *others = strategies[Dimension(role, is_engines=True)]
            if len(cuts) == 1 and not others and isinstance(first, EngineStrategy):
                strategy = space.placement.roles[role].with_cut(*cuts)
                bounds |= self.seconds.reshard_seconds(role, strategy, first)
        return bounds

    def _domains(
        self,
        placement: JobStrategy,
        capacity: Capacity,
        crossing: Mapping[str, Calls],
        known: Known,
    ) -> Iterator[tuple[Dimension, tuple[Candidate, ...]]]:
        for role, strategy in placement.roles.items():
            depth = capacity.depths.get(role, OffloadDepth.NOTHING)
            key = (capacity.cells, role, depth)
            if key not in known:
                known[key] = tuple(
                    open_candidate(cut, completions)
                    for cut in self.seconds.cuts(role, strategy)
                    if (
                        completions := [
                            *self._completions(role, cut, depth, capacity, crossing[role])
                        ]
                    )
                )
            yield Dimension(role), known[key]
            if role in placement.engines:
                engines, key_of_engines = placement.engines[role], (capacity.cells, role, None)
                if key_of_engines not in known:
                    known[key_of_engines] = tuple(
                        self._engines(role, strategy, engines, capacity, crossing[role])
                    )
                yield Dimension(role, is_engines=True), known[key_of_engines]

    def _completions(
        self,
        role: str,
        cut: RoleStrategy,
        depth: OffloadDepth,
        capacity: Capacity,
        crossing: Calls,
    ) -> Iterator[Candidate]:
        moves = self.seconds.move_seconds(role, replace(cut, offload=depth))
        for strategy, seconds in self.seconds.completions(role, cut, crossing).items():
            complete = replace(strategy, offload=depth)
            used = capacity.bytes_of_role(role, self.memory.role_bytes(role, complete))
            yield Candidate(complete, {**seconds, **moves}, used)

    def _engines(
        self,
        role: str,
        strategy: RoleStrategy,
        engines: EngineStrategy,
        capacity: Capacity,
        crossing: Calls,
    ) -> Iterator[Candidate]:
        for sized in engine_completions(self.problem, role, engines):
            seconds = self.seconds.engine_seconds(role, sized, crossing)
            if seconds is not None:
                min_cache, _ = self.seconds.cache_bytes(role, sized)
                used = self.memory.engine_bytes(role, strategy, sized)
                yield Candidate(sized, seconds, capacity.bytes_of_engines(role, used, min_cache))

    def _seconds(
        self, space: SearchSpace, role: str, candidate: Candidate, free: BytesPerPhase
    ) -> Seconds:
        """Bounds of a candidate's calls: those that generate with the largest cache that fits."""
        engines = candidate.strategy
        if isinstance(engines, RoleStrategy):
            return candidate.seconds
        min_cache, max_cache = self.seconds.cache_bytes(role, engines)
        spare = min(
            free[cell] - candidate.min_bytes[cell] for cell in space.capacity.caches_of(role)
        )
        # Rounding up keeps this a lower bound: a larger cache never generates more slowly.
        rounded = -(-(min_cache + spare) // CACHE_STEP_BYTES) * CACHE_STEP_BYTES
        cached = replace(engines, kv_cache_bytes=min(max_cache, rounded))
        bounds = self.seconds.engine_seconds(role, cached, space.crossing[role])
        assert bounds is not None
        return bounds
