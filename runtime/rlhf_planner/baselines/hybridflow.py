"""HybridFlow's mapping of roles to devices: its algorithms 1 and 2. Pure.

Algorithm 1 chooses the sets of roles that share devices, and the devices of each set:

    for every partition of the roles into sets, for every allocation A of the N devices to them with
    A >= A_min: the best strategy of each role by algorithm 2; the mapping of minimum cost is chosen

    cost = sum over stages of the maximum over sets of the sum over a set's roles of their seconds

with the stages generation, preparation (forward passes) and training.

Algorithm 2 chooses the cut of a role's model on the devices of its set, and its engines, each the
fastest by itself:

    t in {t_min, ..., U},  p in {p_min, ..., N_l / U},  d = N_l / (p t)

for N_l devices, U of them on a node; the minimum of simulate(p, t, d) is chosen.

Comments at the lines say how this file decides what the paper leaves open. The cost ignores
transitions, transfers, and overlap between steps. The plan is evaluated like all others, so it may
be slower than one with a higher cost.

Source: HybridFlow (arXiv 2409.19256), section 6, algorithms 1 and 2.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_flow.errors import PlanError, ProfileUnusable
from rlhf_planner.baselines.rule import feasible_placement, fits, symmetric_placements
from rlhf_planner.bounds.calls import CallTimeBounds
from rlhf_planner.candidates.completions import cuts, engine_completions
from rlhf_planner.candidates.placements import (
    block_sizes,
    compositions,
    placement_units,
    set_partitions,
)
from rlhf_planner.cost.calls import generate_call_seconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.feasibility import FeasibleJob, PlacedJob, first_feasible_choice
from rlhf_planner.placement.parallelism import cut_roles
from rlhf_planner.placement.placement import device_groups
from rlhf_planner.placement.strategy import Cut, EngineStrategy, JobStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

# Stages of a step by their calls: generation, preparation, training.
STAGES = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)


class TimedStrategy(NamedTuple):
    """The strategy of a role on a number of devices, with its times."""

    training: RoleStrategy
    """With a cut."""
    engines: EngineStrategy | None
    """With a size. None: it does not generate."""
    stage_seconds: tuple[float, ...]
    """Seconds of its calls in each of `STAGES`, one call after the other."""


class Strategies:
    """The best strategy of each role on each number of devices; each is computed once."""

    def __init__(self, problem: PlanningProblem, hardware: Hardware) -> None:
        (self._pool,) = problem.pools
        self._problem, self._graph = problem, problem.graphs[GraphName.STEP]
        self._links = Links(hardware, self._pool.devices_per_node)
        self._bounds = CallTimeBounds(problem, {self._pool.name: self._links})
        self.best = cache(self._best)
        self._engines = cache(self._best_engines)

    def _best(self, role: str, num_devices: int, min_cut: Cut) -> TimedStrategy | None:
        """The fastest cut and engines of a role, by algorithm 2. None: none fits, even alone.

        Args:
            num_devices: of the role's set.
            min_cut: tensor ranks and stages, t_min and p_min.
        """
        devices = RoleStrategy(Mesh(pool=self._pool.name, data=num_devices))
        # Cuts are left out that do not divide the devices, the layers, or heads and widths, or that
        # let tensor ranks cross nodes. FSDP's roles are not cut; a fixed cut is kept.
        allowed = cuts(self._problem, role, devices)
        tried = possible_cuts(allowed, min_cut, num_devices, self._pool.devices_per_node)
        priced = [
            (seconds, strategy)
            for strategy in map(devices.with_cut, tried)
            if (seconds := self._simulate(role, strategy)) is not None
        ]
        if not priced:
            return None
        # The cut comes first, by the calls that train the role or run it forward; then its engines.
        seconds, training = min(priced, key=lambda pair: sum(pair[0]))
        if not self._problem.models[role].generates:
            return TimedStrategy(training, None, seconds)
        best = self._engines(role, training)
        if best is None:
            return None
        engines, generation = best
        return TimedStrategy(training, engines, (generation, *seconds[1:]))

    def _simulate(self, role: str, strategy: RoleStrategy) -> tuple[float, ...] | None:
        """Seconds of a role's calls in each stage, without generation."""
        # The paper's simulators are the time model of this planner, with the fastest config with
        # which the role fits, alone on its devices.
        calls = self._bounds.role_seconds(role, strategy)
        if calls is None:
            return None
        return tuple(
            sum(
                calls.get(call.id, 0.0) * self._graph.expected_count(call.id)
                for call in self._graph.calls_of_kind(kind)
            )
            for kind in STAGES
        )

    def _best_engines(
        self, role: str, training: RoleStrategy
    ) -> tuple[EngineStrategy, float] | None:
        """The fastest size of engines that fits next to a role's training, with seconds of the
        calls that generate. None: none fits."""
        best: tuple[EngineStrategy, float] | None = None
        # Engines grow from one rank. Their weights and a cache for the longest sequence must fit
        # next to the memory of training; the cache gets what is left.
        for engines in engine_completions(self._problem, role, EngineStrategy(training.devices)):
            alone = JobStrategy({role: training}, {role: engines})
            placed = single_roles(self._problem, alone)
            if not fits(placed):
                continue
            seconds = self._generation_seconds(role, first_feasible_choice(placed))
            if seconds < (inf if best is None else best[1]):
                best = engines, seconds
        return best

    def _generation_seconds(self, role: str, job: FeasibleJob) -> float:
        (model,), engines = job.models, job.strategy.engines[role]
        total = 0.0
        for call in self._graph.calls_of_kind(CallKind.GENERATE):
            if call.role == role:
                try:
                    call_seconds = generate_call_seconds(
                        self._problem, call, model, engines, self._links
                    )
                except ProfileUnusable:  # engines of this size were not measured
                    return inf
                total += call_seconds.total * self._graph.expected_count(call.id)
        return total


def single_roles(problem: PlanningProblem, placement: JobStrategy) -> PlacedJob:
    """Some roles of a job, as if their devices had no others.

    Args:
        placement: of only these roles, with models cut and engines sized.
    """
    models = {role: facts for role, facts in problem.models.items() if role in placement.roles}
    subset = replace(problem, models=models)
    strategy = replace(placement, roles=cut_roles(subset, placement.roles))
    return PlacedJob(subset, strategy, device_groups(problem.pools, placement), is_chosen=True)


def possible_cuts(
    allowed: tuple[Cut, ...], min_cut: Cut, num_devices: int, per_node: int
) -> tuple[Cut, ...]:
    """The cuts that the algorithm tries.

    Args:
        allowed: cuts that divide devices and model; only one if it is fixed.
        min_cut: tensor ranks and stages, t_min and p_min.
        num_devices: of the set, N_l.
        per_node: devices of a node.
    """
    if len(allowed) == 1:
        return allowed
    # On less than a node N_l / U is 0, and p ends at p_min. If t_min or p_min divides nothing, the
    # next larger divisor comes first.
    max_pipeline = max(min_cut.pipeline, num_devices // per_node)
    return tuple(
        cut
        for cut in allowed
        if cut.tensor >= min_cut.tensor and min_cut.pipeline <= cut.pipeline <= max_pipeline
    )


# Limit of mappings that are checked against memory; each that does not fit takes some milliseconds.
MAX_TRIED = 50

RoleSet = tuple[str, ...]


class Allocation(NamedTuple):
    """The minimum of devices of a set."""

    num_devices: int
    """A_min."""
    cut: Cut
    """t_min and p_min."""


class DeviceMapping(NamedTuple):
    """Sets of roles, and devices for each."""

    sets: tuple[RoleSet, ...]
    devices: tuple[int, ...]
    """Number of devices of each set."""


def hybridflow_mapping(problem: PlanningProblem, hardware: Hardware) -> FeasibleJob | None:
    """The feasible job of minimum cost. None: none of the tried ones fits.

    Args:
        problem: the planning problem, on one pool.
        hardware: of its devices.

    Raises:
        PlanError, ManifestError: no runtime executes any of them.
    """
    # Costs are those of roles alone: the others of a set may force another config, or leave less
    # memory for the cache. So the cheapest mapping may not fit, or no runtime may execute it. Then
    # the next cheapest is tried.
    mapper = Mapper(problem, hardware)
    cheapest = nsmallest(MAX_TRIED, mapper.costs(), key=lambda pair: pair[0])
    refusals: list[PlanError | ManifestError] = []
    for _, mapping in cheapest:
        try:
            job = feasible_placement(problem, mapper.placement(mapping))
        except (PlanError, ManifestError) as error:
            refusals.append(error)
            continue
        if job is not None:
            return job
    if refusals and len(refusals) == len(cheapest):
        raise refusals[0]
    return None


class Mapper:
    """All mappings of a problem's roles to devices, and their costs."""

    def __init__(self, problem: PlanningProblem, hardware: Hardware) -> None:
        (self._pool,) = problem.pools
        self._problem, self._block = problem, block_sizes(problem)[self._pool.name]
        self._strategies = Strategies(problem, hardware)
        self._minimums: dict[RoleSet, Allocation | None] = {}
        self._seconds: dict[tuple[RoleSet, int], tuple[float, ...] | None] = {}

    def costs(self) -> Iterator[tuple[float, DeviceMapping]]:
        """Every mapping with its cost, d_cost; sets that fit nowhere are skipped."""
        # Roles that copy each other's weights count as one, and so do the last of many roles.
        groups = [unit.roles for unit in placement_units(self._problem) if not unit.generates]
        for partition in set_partitions(groups):
            sets = tuple(tuple(role for roles in set_ for role in roles) for set_ in partition)
            for mapping in self._allocations(sets):
                seconds = [
                    self.set_seconds(*pair)
                    for pair in zip(mapping.sets, mapping.devices, strict=True)
                ]
                feasible_seconds = [second for second in seconds if second is not None]
                if len(feasible_seconds) == len(sets):
                    yield mapping_cost(feasible_seconds), mapping

    def _allocations(self, sets: tuple[RoleSet, ...]) -> Iterator[DeviceMapping]:
        """All allocations of devices to sets, with at least the minimum of each."""
        minimums = [self.min_allocation(set) for set in sets]
        needed = [minimum.num_devices for minimum in minimums if minimum is not None]
        if len(needed) < len(sets) or sum(needed) > self._pool.num_devices:
            return
        # Blocks as in the planner's own placements, so that both compare the same device counts.
        for blocks in compositions(self._pool.num_devices // self._block, len(sets)):
            devices = tuple(block * self._block for block in blocks)
            if all(count >= number for count, number in zip(devices, needed, strict=True)):
                yield DeviceMapping(sets, devices)

    def min_allocation(self, roles: RoleSet) -> Allocation | None:
        """A_min of a set. None: it does not fit on all devices."""
        if roles not in self._minimums:
            self._minimums[roles] = self._compute_min_allocation(roles)
        return self._minimums[roles]

    def _compute_min_allocation(self, roles: RoleSet) -> Allocation | None:
        # The fewest devices on which all roles fit with the same cut, by this planner's memory. The
        # cut, t_min and p_min, is also the minimum on more devices.
        for devices in range(self._block, self._pool.num_devices + 1, self._block):
            mesh = Mesh(pool=self._pool.name, data=devices)
            for cut, placement in symmetric_placements(self._problem, roles, mesh):
                if fits(single_roles(self._problem, placement)):
                    return Allocation(devices, cut)
        return None

    def set_seconds(self, roles: RoleSet, devices: int) -> tuple[float, ...] | None:
        """Seconds of a set in each stage. None: some role has no strategy."""
        key = roles, devices
        if key not in self._seconds:
            strategies = [self.strategy(roles, role, devices) for role in roles]
            stage_seconds = [
                strategy.stage_seconds for strategy in strategies if strategy is not None
            ]
            is_complete = len(stage_seconds) == len(roles)
            # Roles of a set share its devices, so they run one after the other.
            self._seconds[key] = (
                tuple(map(sum, zip(*stage_seconds, strict=True))) if is_complete else None
            )
        return self._seconds[key]

    def strategy(self, roles: RoleSet, role: str, devices: int) -> TimedStrategy | None:
        """The strategy of a role of a set on its devices."""
        minimum = self.min_allocation(roles)
        return None if minimum is None else self._strategies.best(role, devices, minimum.cut)

    def placement(self, mapping: DeviceMapping) -> JobStrategy:
        """The devices of each role, with models cut and engines sized."""
        # Larger sets come first, as in the planner's own placements.
        strategies: dict[str, RoleStrategy] = {}
        engines: dict[str, EngineStrategy] = {}
        first = 0
        order = sorted(zip(mapping.devices, mapping.sets, strict=True), key=lambda pair: -pair[0])
        for devices, roles in order:
            mesh = Mesh(pool=self._pool.name, first_rank=first, data=devices)
            for role in roles:
                strategy = self.strategy(roles, role, devices)
                assert strategy is not None, "a mapping of roles without a strategy has no cost"
                strategies[role] = replace(strategy.training, devices=mesh)
                if strategy.engines is not None:
                    engines[role] = replace(strategy.engines, devices=mesh)
            first += devices
        models = self._problem.models
        return JobStrategy(
            {role: strategies[role] for role in models},
            {role: engines[role] for role in models if role in engines},
        )


def mapping_cost(sets: list[tuple[float, ...]]) -> float:
    """d_cost: stages one after the other, in each of them all sets at once.

    Args:
        sets: seconds of each set in each stage.
    """
    return sum(max(set_seconds[stage] for set_seconds in sets) for stage in range(len(STAGES)))
