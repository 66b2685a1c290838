"""Lower bounds of the memory of roles and engines, and the capacity of a placement. Pure.

The sums have the same items as a plan's, by phase. Choices that a layout leaves open count with
their minimum: a layout that does not fit here fits in no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from rlhf_api.calls import IDLE, CallKind, Phase, call_phase
from rlhf_api.mesh import Mesh
from rlhf_api.plan import OffloadDepth, Pool
from rlhf_api.plan_memory import MemoryItem, sum_by_phase
from rlhf_api.spec.resources import Device
from rlhf_flow.step.calls import ModelCall
from rlhf_planner.memory.choices import micro_batch_sizes
from rlhf_planner.memory.generation import (
    GenerationLoad,
    generation_items,
    generation_load,
    kv_bytes,
    sending_items,
)
from rlhf_planner.memory.items import process_items
from rlhf_planner.memory.offloading import OffloadChoice, phases_on_device, required_standby
from rlhf_planner.memory.roles import checkpoint_items, job_phases, role_items, role_model
from rlhf_planner.placement.placement import CallPlacement, DeviceGroup, RolePlacement
from rlhf_planner.problem.problem import PlanningProblem

# Bytes on a device of each group of a placement, in each of its phases.
BytesPerPhase = tuple[int, ...]


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
    def role_bytes(self) -> Callable[[str, Mesh, int, bool, OffloadDepth], PeakBytes]:
        """Bytes of a role by name, cut mesh, tokens of a micro-batch, recomputation and offload
        depth."""
        # A cache per object: `cache` on the method would keep all problems in memory.
        return cache(self._role_bytes)

    @cached_property
    def engine_bytes(self) -> Callable[[str, RolePlacement, int], EngineBytes]:
        """Bytes of a role's engines by role, placement and ranks per engine."""
        return cache(self._engine_bytes)

    @cached_property
    def load(self) -> Callable[[str, RolePlacement], GenerationLoad]:
        """The generation load of a role in a placement."""
        # Only the ranks that hold the model matter here, not its cut.
        return cache(self._load)

    def min_cache(self, role: str, role_placement: RolePlacement, tensor: int) -> int:
        """Bytes of the smallest cache that engines may have."""
        fixed_bytes = self.problem.fixed.kv_cache_bytes
        # An engine that cannot hold one longest sequence could not finish it.
        return (
            kv_bytes(self.load(role, role_placement), tensor, 1)
            if fixed_bytes is None
            else fixed_bytes
        )

    def max_cache(self, role: str, role_placement: RolePlacement, tensor: int) -> int:
        """Bytes of the largest cache that engines can use."""
        fixed_bytes, load = self.problem.fixed.kv_cache_bytes, self.load(role, role_placement)
        engines = role_placement.generation.mesh.num_devices // tensor
        return (
            kv_bytes(load, tensor, load.sequences(engines)) if fixed_bytes is None else fixed_bytes
        )

    @cached_property
    def _calls(self) -> tuple[ModelCall, ...]:
        return tuple(call for graph in self.problem.graphs.values() for call in graph.calls)

    @cached_property
    def _pools(self) -> Mapping[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def _role_bytes(
        self, role: str, mesh: Mesh, tokens: int, recompute: bool, depth: OffloadDepth
    ) -> PeakBytes:
        model = role_model(self.problem, self.problem.models[role], mesh, tokens, recompute)
        own = phases_on_device(role, self._calls)
        # IDLE stands for all phases of other roles, in which the role holds the same bytes.
        phases = (*sorted(own, key=str), IDLE)
        items = role_items(model, phases, depth, own)
        # On CPUs the copy that a checkpoint writes is in the memory of the ranks.
        if self.problem.device is Device.CPU and self.problem.fixed.saves_while_training:
            items += checkpoint_items(model, phases)
        return _peak_bytes(items, phases)

    def _load(self, role: str, role_placement: RolePlacement) -> GenerationLoad:
        # A load does not depend on micro-batches; any size serves.
        tokens = micro_batch_sizes(self.problem)[0]
        facts, mesh = self.problem.models[role], role_placement.training.mesh
        model = role_model(self.problem, facts, mesh, tokens, recompute=False)
        return generation_load(self.problem, self._pools[mesh.pool], model, role_placement)

    def _engine_bytes(self, role: str, role_placement: RolePlacement, tensor: int) -> EngineBytes:
        load = self.load(role, role_placement)
        own = (call_phase(role, CallKind.RESHARD), call_phase(role, CallKind.GENERATE))
        phases = (*own, IDLE)
        # Engines that release their memory hold the least, and caches are added per layout.
        generating = generation_items(
            load, role=role, tensor=tensor, kv_cache_bytes=0, phases=phases, release=True
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

    cells: tuple[tuple[DeviceGroup, Phase], ...]
    spare: BytesPerPhase
    """Bytes of each cell."""
    offload: OffloadChoice
    """Roles that leave their devices."""

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
    problem: PlanningProblem, groups: Sequence[DeviceGroup], offload: OffloadChoice
) -> Capacity:
    """Memory of the devices, less processes and standby libraries.

    Args:
        groups: all devices, by the roles on them.
        offload: roles that leave their devices.
    """
    cells, spare = [], []
    for group in groups:
        # Phases are the group's own: offloading adds none, but removes roles from some.
        phases = job_phases(problem, group, offload.roles)
        pool = group.pool
        items = [
            *process_items(pool.device, pool.memory_bytes_per_device, phases),
            *required_standby(problem.fixed, pool, phases),
        ]
        cells += [(group, phase) for phase in phases]
        # Processes and libraries hold the same bytes in every phase.
        spare += [pool.memory_bytes_per_device - sum(item.bytes for item in items)] * len(phases)
    return Capacity(tuple(cells), tuple(spare), offload)


def uncut(role_placement: RolePlacement) -> RolePlacement:
    """The devices of a role, without its cut and the size of its engines."""
    return RolePlacement(
        CallPlacement(role_placement.training.mesh), CallPlacement(role_placement.generation.mesh)
    )
