"""HybridFlow's algorithm 1: which roles share devices, and how many. Pure.

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
from heapq import nsmallest
from typing import NamedTuple

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Mesh
from rlhf_flow.errors import PlanError
from rlhf_flow.planning.baselines.baseline import fits, fitted_placement
from rlhf_flow.planning.baselines.hybridflow_strategy import (
    STAGES,
    Strategies,
    Strategy,
    placed_alone,
)
from rlhf_flow.planning.baselines.symmetric_cuts import symmetric_placements
from rlhf_flow.planning.fitting import FittedJob
from rlhf_flow.planning.placement import CallPlace, RolePlace
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.layouts import Cut, cut_place
from rlhf_flow.planning.search.placements import Placement, tenants, unit_devices
from rlhf_flow.planning.search.set_partitions import compositions, set_partitions
from rlhf_flow.planning.seconds.hardware import Hardware

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
