"""Memory of strategies, by phases of a placement's devices. Pure.

The sums have the same items as a plan's. What a search leaves open counts with its minimum: what
does not fit here fits in no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from rlhf_api.calls import IDLE, CallKind, Phase, call_phase
from rlhf_api.plan import OffloadDepth
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_planner.memory.generation import generation_items, generation_load, sending_items
from rlhf_planner.memory.offloading import Depths, required_standby
from rlhf_planner.memory.role_model import process_items
from rlhf_planner.memory.roles import job_phases, own_phases, resident_items, role_model
from rlhf_planner.placement.placement import DeviceGroup
from rlhf_planner.placement.strategy import EngineStrategy, RoleStrategy
from rlhf_planner.problem.problem import PlanningProblem

# Bytes on a device of each group of a placement, in each of its phases.
BytesPerPhase = tuple[int, ...]
# Groups of a placement, each with its phases.
Cells = tuple[tuple[DeviceGroup, Phase], ...]


@dataclass(frozen=True)
class PeakBytes:
    """Bytes of a role, or of its engines, on each of their devices, by phase."""

    other_phases: int
    """Bytes in phases of other roles."""
    own_phases: Mapping[Phase, int]

    def in_phase(self, phase: Phase) -> int:
        """Bytes in a phase."""
        return self.own_phases.get(phase, self.other_phases)


class EngineBytes(NamedTuple):
    """Bytes of generation, without caches."""

    generating: PeakBytes
    """On devices that generate, if their memory is released."""
    sending: PeakBytes
    """On devices that hold the model and do not generate."""


@dataclass(frozen=True, eq=False)
class MemoryBounds:
    """Sums for one problem; results are cached for the lifetime of this object."""

    problem: PlanningProblem

    @cached_property
    def role_bytes(self) -> Callable[[str, RoleStrategy], PeakBytes]:
        """Bytes of a role by its complete strategy."""
        # A cache per object: `cache` on the method would keep all problems in memory.
        return cache(self._role_bytes)

    def _role_bytes(self, role: str, strategy: RoleStrategy) -> PeakBytes:
        model = role_model(self.problem, role, strategy)
        # IDLE stands for all phases of other roles, in which the role holds the same bytes.
        phases = (*sorted(own_phases(self.problem, role), key=str), IDLE)
        depth = strategy.offload or OffloadDepth.NOTHING
        return _peak_bytes(resident_items(self.problem, model, phases, depth), phases)

    @cached_property
    def engine_bytes(self) -> Callable[[str, RoleStrategy, EngineStrategy], EngineBytes]:
        """Bytes of a role's engines by the devices that hold it, and engines with a size."""
        return cache(self._engine_bytes)

    def _engine_bytes(
        self, role: str, strategy: RoleStrategy, engines: EngineStrategy
    ) -> EngineBytes:
        # Only the ranks that hold the model matter here, not how it is computed.
        model = role_model(self.problem, role, strategy)
        load, tensor = generation_load(self.problem, model, engines), engines.mesh.tensor
        own = (call_phase(role, CallKind.RESHARD), call_phase(role, CallKind.GENERATE))
        phases = (*own, IDLE)
        # Engines that release their memory and pack nothing hold the least; caches are added later.
        generating = generation_items(
            load,
            role=role,
            tensor=tensor,
            kv_cache_bytes=0,
            phases=phases,
            release=True,
            packs_weights=False,
        )
        sending = sending_items(load, role=role, tensor=tensor, phases=phases)
        return EngineBytes(_peak_bytes(generating, phases), _peak_bytes(sending, phases))


def _peak_bytes(items: tuple[MemoryItem, ...], phases: Sequence[Phase]) -> PeakBytes:
    sums = sum_by_phase(items)
    own = {phase: sums.get(phase, 0) for phase in phases if phase is not IDLE}
    return PeakBytes(sums.get(IDLE, 0), own)


@dataclass(frozen=True, eq=False)
class Capacity:
    """Memory of a placement's devices, without what every process needs."""

    cells: Cells
    spare: BytesPerPhase
    """Bytes of each cell."""
    depths: Depths
    """Depth of the roles that leave their devices."""

    def bytes_of_role(self, role: str, bytes_by_phase: PeakBytes) -> BytesPerPhase:
        """Spread a role's bytes over the cells."""
        return tuple(
            bytes_by_phase.in_phase(phase) if role in group.roles else 0
            for group, phase in self.cells
        )

    def bytes_of_engines(
        self, role: str, bytes_by_phase: EngineBytes, kv_cache_bytes: int
    ) -> BytesPerPhase:
        """Spread the bytes of a role's engines over the cells."""
        generates = call_phase(role, CallKind.GENERATE)
        return tuple(
            bytes_by_phase.generating.in_phase(phase)
            + (kv_cache_bytes if phase == generates else 0)
            if role in group.generating
            else bytes_by_phase.sending.in_phase(phase)
            if role in group.roles
            else 0
            for group, phase in self.cells
        )

    def caches_of(self, role: str) -> tuple[int, ...]:
        """Indices of the cells that hold the caches of a role's engines."""
        generates = call_phase(role, CallKind.GENERATE)
        return tuple(
            number
            for number, (group, phase) in enumerate(self.cells)
            if role in group.generating and phase == generates
        )


def capacity_of(
    problem: PlanningProblem, groups: Sequence[DeviceGroup], depths: Depths
) -> Capacity:
    """Memory of the devices, less processes and standby libraries.

    Args:
        groups: all devices, by the roles on them.
        depths: of the roles that leave their devices.
    """
    cells, spare = [], []
    for group in groups:
        # Phases are the group's own: offloading adds none, but removes roles from some.
        phases = job_phases(problem, group, depths)
        pool = group.pool
        items = [
            *process_items(pool.device, pool.memory_bytes_per_device, phases),
            *required_standby(problem.fixed, pool, phases),
        ]
        cells += [(group, phase) for phase in phases]
        # Processes and libraries hold the same bytes in every phase.
        spare += [pool.memory_bytes_per_device - sum(item.bytes for item in items)] * len(phases)
    return Capacity(tuple(cells), tuple(spare), depths)
