"""HybridFlow's algorithm 2: how a role's model is cut on so many devices, and with which engines it
generates there, each the fastest by itself. Pure.

    t in {t_min, ..., U},  p in {p_min, ..., N_l / U},  d = N_l / (p t)

for N_l devices, U of them on a node; the least of simulate(p, t, d) is taken.

What the paper leaves open, as it is here:
- Its simulators are the time model of this planner (`simulate`: seconds/), with the quickest way to
  compute with which the role fits on its devices if it is alone there.
- Left out are cuts for which d is no whole number, p does not divide the layers, t does not divide
  heads and widths, or tensor ranks would be on two nodes. Where N_l is less than a node, t ends at
  N_l and p at p_min. If t_min or p_min divides nothing the next that does is first.
- FSDP's roles are not cut; a manifest's cut is kept.
- The policy's cut for training is chosen first, by its calls that train or run forward. What it
  holds is recorded, and engines grow from one rank until their weights and a cache for the longest
  sequence fit beside it; from there on the fastest is kept, with the cache that is left.

Source: HybridFlow (arXiv 2409.19256), section 6 and algorithm 2.

HybridFlow's algorithm 1: which roles share devices, and how many. Pure.

    for every partition of the roles into sets, for every allocation A of the N devices to them with
    A >= A_min: the best strategy of each role by algorithm 2; the mapping of least cost is taken

    cost = sum over stages of the maximum over sets of the sum over a set's roles of their seconds

with the stages generation, preparation (forward passes) and training.

What the paper leaves open, as it is here:
- A_min of a set, with t_min and p_min: the least devices on which all of its roles fit, all with
  the same cut, by this planner's memory: tensor ranks grow first, then stages (symmetric_cuts.py).
  Engines have as many ranks as there are tensor ranks. t_min and p_min hold on more devices, too.
- Devices are allocated in the units of the planner's own placements, single devices where there are
  few (search/placements.py); sets with most come first. Roles that copy each other's weights are
  one, and so are the last of many.
- The seconds of a strategy are those of a role alone: what else its set holds may need another way
  to compute, or leaves less for the cache. A mapping that does not fit then, or that no runtime
  executes (tensor ranks on two nodes), gives way to that of the next least cost, `MAX_TRIED` times.
- The cost knows nothing of transitions, of transfers, or of what overlaps between steps: the plan
  is judged like all others, and may take longer than another that costs more by this.

Source: HybridFlow (arXiv 2409.19256), section 6 and algorithm 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from heapq import nsmallest
from math import inf
from typing import NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, Mesh
from rlhf_flow.errors import PlanError, ProfileUnusable
from rlhf_planner.baselines.rule import fits, fitted_placement, symmetric_placements
from rlhf_planner.bounds.time import LeastSeconds
from rlhf_planner.cost.calls import generate_call_seconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.feasibility import FittedJob, PlacedJob, first_way_that_fits
from rlhf_planner.placement.parallelism import cut_meshes
from rlhf_planner.placement.placement import CallPlace, RolePlace, device_groups
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.strategies.parallelism import Cut, cut_place, cuts, engine_tensors
from rlhf_planner.strategies.placements import (
    Placement,
    compositions,
    set_partitions,
    tenants,
    unit_devices,
)

STAGES = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
"""Of a step, by their calls: generation, preparation, training."""


@dataclass(frozen=True)
class Strategy:
    """How a role computes on so many devices."""

    cut: Cut
    """For training and forward passes."""
    engine_tensor: int | None
    """Ranks of an engine. None: it does not generate."""
    stage_seconds: tuple[float, ...]
    """Of its calls in each of `STAGES`, one call after the other."""


class Strategies:
    """The best strategy of each role on each number of devices; each is sought once."""

    def __init__(self, problem: PlanningProblem, hardware: Hardware) -> None:
        (self._pool,) = problem.pools
        self._problem, self._graph = problem, problem.graphs[GraphName.STEP]
        self._links = Links(hardware, self._pool.devices_per_node)
        self._least = LeastSeconds(problem, {self._pool.name: self._links})
        self.best = cache(self._best)
        self._engines = cache(self._best_engines)

    def _best(self, role: str, num_devices: int, least: Cut) -> Strategy | None:
        """The fastest cut and engines of a role. None: none fits, even if it is alone.

        Args:
            role: its name.
            num_devices: of its set.
            least: tensor ranks and stages, t_min and p_min.
        """
        place = CallPlace(Mesh(pool=self._pool.name, data=num_devices))
        priced = [
            (seconds, cut)
            for cut in possible_cuts(self._cuts(role, place), least, num_devices, self._per_node)
            if (seconds := self._simulate(role, place.mesh, cut)) is not None
        ]
        if not priced:
            return None
        seconds, cut = min(priced, key=lambda each: sum(each[0]))
        if not self._problem.models[role].generates:
            return Strategy(cut, None, seconds)
        engines = self._engines(role, num_devices, cut)
        if engines is None:
            return None
        tensor, generation = engines
        return Strategy(cut, tensor, (generation, *seconds[1:]))

    @property
    def _per_node(self) -> int:
        return self._pool.devices_per_node

    def _cuts(self, role: str, place: CallPlace) -> tuple[Cut, ...]:
        return cuts(self._problem.models[role], place, self._pool)

    def _simulate(self, role: str, mesh: Mesh, cut: Cut) -> tuple[float, ...] | None:
        """Seconds of a role's calls in each stage, without generation."""
        calls = self._least.of_model(role, mesh, cut)
        if calls is None:
            return None
        return tuple(
            sum(
                calls.get(call.id, 0.0) * self._graph.expected_count(call.id)
                for call in self._graph.calls_of_kind(kind)
            )
            for kind in STAGES
        )

    def _best_engines(self, role: str, num_devices: int, cut: Cut) -> tuple[int, float] | None:
        """The fastest size of engines that fits beside a role's training, with the seconds of the
        calls that generate. None: none fits."""
        place = CallPlace(Mesh(pool=self._pool.name, data=num_devices))
        facts = self._problem.models[role]
        best: tuple[int, float] | None = None
        for tensor in engine_tensors(self._problem, facts, place, self._pool):
            engines = CallPlace(place.mesh, tensor, is_chosen=True)
            placed = placed_alone(self._problem, {role: RolePlace(cut_place(place, cut), engines)})
            if not fits(placed):
                continue
            seconds = self._generation_seconds(role, first_way_that_fits(placed))
            if seconds < (inf if best is None else best[1]):
                best = tensor, seconds
        return best

    def _generation_seconds(self, role: str, fitted: FittedJob) -> float:
        (model,), engine = fitted.models, fitted.engines[role]
        load = next(loads[role] for loads in fitted.loads if role in loads)
        found = 0.0
        for call in self._graph.calls_of_kind(CallKind.GENERATE):
            if call.role == role:
                engines = engine.mesh, engine.kv_cache_bytes
                try:
                    each = generate_call_seconds(
                        self._problem, call, model, load, engines, self._links
                    )
                except ProfileUnusable:  # engines of this size were not measured
                    return inf
                found += each.total * self._graph.expected_count(call.id)
        return found


def placed_alone(problem: PlanningProblem, placement: Placement) -> PlacedJob:
    """Some roles of a job, as if their devices held no others.

    Args:
        problem: what is planned.
        placement: of these roles, with models cut and engines sized.
    """
    models = {role: facts for role, facts in problem.models.items() if role in placement}
    subset = replace(problem, models=models)
    meshes = cut_meshes(subset, placement)
    groups = device_groups(problem.pools, placement)
    return PlacedJob(subset, placement, meshes, groups, is_chosen=True)


def possible_cuts(
    legal: tuple[Cut, ...], least: Cut, num_devices: int, per_node: int
) -> tuple[Cut, ...]:
    """The cuts that the algorithm tries.

    Args:
        legal: cuts that come out even; only one where it is decided.
        least: tensor ranks and stages, t_min and p_min.
        num_devices: of the set, N_l.
        per_node: devices of a node.
    """
    if len(legal) == 1:
        return legal
    most = max(least.pipeline, num_devices // per_node)
    return tuple(
        cut
        for cut in legal
        if cut.tensor >= least.tensor and least.pipeline <= cut.pipeline <= most
    )


MAX_TRIED = 50
"""Mappings that are fitted into memory at most; each that does not fit takes some milliseconds."""

RoleSet = tuple[str, ...]


class Allocation(NamedTuple):
    """Of a set: what it needs at least."""

    num_devices: int
    """A_min."""
    cut: Cut
    """t_min and p_min."""


class DeviceMapping(NamedTuple):
    """Sets of roles, and devices for each."""

    sets: tuple[RoleSet, ...]
    devices: tuple[int, ...]
    """Of each set."""


def hybridflow_mapping(problem: PlanningProblem, hardware: Hardware) -> FittedJob | None:
    """The plan of least cost that fits. None: none of those that were tried.

    Args:
        problem: what is planned, on one pool.
        hardware: of its devices.

    Raises:
        PlanError, ManifestError: no runtime executes any of them.
    """
    mapper = Mapper(problem, hardware)
    cheapest = nsmallest(MAX_TRIED, mapper.costs(), key=lambda each: each[0])
    refusals: list[PlanError | ManifestError] = []
    for _, mapping in cheapest:
        try:
            fitted = fitted_placement(problem, mapper.placement(mapping))
        except (PlanError, ManifestError) as error:
            refusals.append(error)
            continue
        if fitted is not None:
            return fitted
    if refusals and len(refusals) == len(cheapest):
        raise refusals[0]
    return None


class Mapper:
    """All mappings of a problem's roles to devices, and what they cost."""

    def __init__(self, problem: PlanningProblem, hardware: Hardware) -> None:
        (self._pool,) = problem.pools
        self._problem, self._unit = problem, unit_devices(problem)[self._pool.name]
        self._strategies = Strategies(problem, hardware)
        self._least: dict[RoleSet, Allocation | None] = {}
        self._seconds: dict[tuple[RoleSet, int], tuple[float, ...] | None] = {}

    def costs(self) -> Iterator[tuple[float, DeviceMapping]]:
        """Every mapping with its cost, d_cost; those of sets that fit nowhere are left out."""
        parted = [each.roles for each in tenants(self._problem) if not each.generates]
        for partition in set_partitions(parted):
            sets = tuple(tuple(role for roles in part for role in roles) for part in partition)
            for mapping in self._allocations(sets):
                seconds = [
                    self.set_seconds(*each)
                    for each in zip(mapping.sets, mapping.devices, strict=True)
                ]
                known = [each for each in seconds if each is not None]
                if len(known) == len(sets):
                    yield mapping_cost(known), mapping

    def _allocations(self, sets: tuple[RoleSet, ...]) -> Iterator[DeviceMapping]:
        """All devices allocated to sets, to each at least what it needs."""
        least = [self.least_allocation(each) for each in sets]
        needed = [each.num_devices for each in least if each is not None]
        if len(needed) < len(sets) or sum(needed) > self._pool.num_devices:
            return
        for units in compositions(self._pool.num_devices // self._unit, len(sets)):
            devices = tuple(each * self._unit for each in units)
            if all(given >= number for given, number in zip(devices, needed, strict=True)):
                yield DeviceMapping(sets, devices)

    def least_allocation(self, roles: RoleSet) -> Allocation | None:
        """A_min of a set. None: it does not fit on all devices."""
        if roles not in self._least:
            self._least[roles] = self._least_allocation(roles)
        return self._least[roles]

    def _least_allocation(self, roles: RoleSet) -> Allocation | None:
        for devices in range(self._unit, self._pool.num_devices + 1, self._unit):
            mesh = Mesh(pool=self._pool.name, data=devices)
            for cut, placement in symmetric_placements(self._problem, roles, mesh):
                if fits(placed_alone(self._problem, placement)):
                    return Allocation(devices, cut)
        return None

    def set_seconds(self, roles: RoleSet, devices: int) -> tuple[float, ...] | None:
        """Seconds of a set in each stage: its roles take turns. None: some role has no strategy."""
        key = roles, devices
        if key not in self._seconds:
            found = [self.strategy(roles, role, devices) for role in roles]
            known = [each.stage_seconds for each in found if each is not None]
            whole = len(known) == len(roles)
            self._seconds[key] = tuple(map(sum, zip(*known, strict=True))) if whole else None
        return self._seconds[key]

    def strategy(self, roles: RoleSet, role: str, devices: int) -> Strategy | None:
        """How a role of a set computes on its devices."""
        least = self.least_allocation(roles)
        return None if least is None else self._strategies.best(role, devices, least.cut)

    def placement(self, mapping: DeviceMapping) -> Placement:
        """Where roles are, with models cut and engines sized; sets with most devices first."""
        found: dict[str, RolePlace] = {}
        first = 0
        order = sorted(zip(mapping.devices, mapping.sets, strict=True), key=lambda each: -each[0])
        for devices, roles in order:
            place = CallPlace(Mesh(pool=self._pool.name, first_rank=first, data=devices))
            for role in roles:
                strategy = self.strategy(roles, role, devices)
                assert strategy is not None, "a mapping of roles without a strategy has no cost"
                found[role] = _role_place(place, strategy)
            first += devices
        return {role: found[role] for role in self._problem.models}


def mapping_cost(sets: list[tuple[float, ...]]) -> float:
    """d_cost: stages one after the other, in each of them all sets at once.

    Args:
        sets: seconds of each set in each stage.
    """
    return sum(max(of_set[stage] for of_set in sets) for stage in range(len(STAGES)))


def _role_place(place: CallPlace, strategy: Strategy) -> RolePlace:
    training = cut_place(place, strategy.cut)
    if strategy.engine_tensor is None:
        return RolePlace(training, training)
    return RolePlace(training, CallPlace(place.mesh, strategy.engine_tensor, is_chosen=True))
