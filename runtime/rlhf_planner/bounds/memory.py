"""What roles and engines hold on devices at least, and how much room a placement has for it. Pure.

The same lines as a plan's, summed by phase. Of what a layout leaves open the least is taken, so
that what does not fit here fits in no plan.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import NamedTuple

from rlhf_api.calls import IDLE, CallKind, Phase, call_phase
from rlhf_api.plan import Mesh, OffloadDepth, Pool
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
from rlhf_planner.placement.placement import CallPlace, DeviceGroup, RolePlace
from rlhf_planner.problem.problem import PlanningProblem

Cells = tuple[int, ...]
"""Bytes on a device of each group of a placement, in each of its phases."""


@dataclass(frozen=True)
class Held:
    """What a role, or its engines, have on each of their devices."""

    otherwise: int
    """In phases of others."""
    own: Mapping[Phase, int]
    """In its own phases."""

    def in_phase(self, phase: Phase) -> int:
        """Bytes."""
        return self.own.get(phase, self.otherwise)


class EnginesHeld(NamedTuple):
    """What generation takes, without caches."""

    generating: Held
    """On devices that generate, if memory is given back."""
    sending: Held
    """On those that hold the model and do not generate."""


@dataclass(frozen=True, eq=False)
class LeastMemory:
    """Sums for one problem; answers are kept as long as this object."""

    problem: PlanningProblem
    """What is planned."""

    @cached_property
    def of_role(self) -> Callable[[str, Mesh, int, bool, OffloadDepth], Held]:
        """A role: its name, its mesh as it is cut, tokens of a micro-batch, whether activations are
        computed again, and how much of it leaves its devices."""
        return cache(self._of_role)

    @cached_property
    def of_engines(self) -> Callable[[str, RolePlace, int], EnginesHeld]:
        """Engines: the role, where it is, and their ranks."""
        return cache(self._of_engines)

    @cached_property
    def load(self) -> Callable[[str, RolePlace], GenerationLoad]:
        """What is asked of a role's engines there; which ranks hold its model is all that its cut
        is taken for."""
        return cache(self._load)

    def least_cache(self, role: str, place: RolePlace, tensor: int) -> int:
        """Bytes of the smallest cache that engines may have."""
        given = self.problem.fixed.kv_cache_bytes
        return kv_bytes(self.load(role, place), tensor, 1) if given is None else given

    def most_cache(self, role: str, place: RolePlace, tensor: int) -> int:
        """Bytes of the largest cache that is of use to them."""
        given, load = self.problem.fixed.kv_cache_bytes, self.load(role, place)
        engines = place.generation.mesh.num_devices // tensor
        return kv_bytes(load, tensor, load.sequences(engines)) if given is None else given

    @cached_property
    def _calls(self) -> tuple[ModelCall, ...]:
        return tuple(call for graph in self.problem.graphs.values() for call in graph.calls)

    @cached_property
    def _pools(self) -> Mapping[str, Pool]:
        return {pool.name: pool for pool in self.problem.pools}

    def _of_role(
        self, role: str, mesh: Mesh, tokens: int, recompute: bool, depth: OffloadDepth
    ) -> Held:
        model = role_model(self.problem, self.problem.models[role], mesh, tokens, recompute)
        own = phases_on_device(role, self._calls)
        phases = (*sorted(own, key=str), IDLE)
        items = role_items(model, phases, depth, own)
        if self.problem.device is Device.CPU and self.problem.fixed.saves_while_training:
            items += checkpoint_items(model, phases)
        return _held(items, phases)

    def _load(self, role: str, place: RolePlace) -> GenerationLoad:
        tokens = micro_batch_sizes(self.problem)[0]
        facts, mesh = self.problem.models[role], place.training.mesh
        model = role_model(self.problem, facts, mesh, tokens, recompute=False)
        return generation_load(self.problem, self._pools[mesh.pool], model, place)

    def _of_engines(self, role: str, place: RolePlace, tensor: int) -> EnginesHeld:
        load = self.load(role, place)
        own = (call_phase(role, CallKind.RESHARD), call_phase(role, CallKind.GENERATE))
        phases = (*own, IDLE)
        generating = generation_items(
            load, role=role, tensor=tensor, kv_cache_bytes=0, phases=phases, release=True
        )
        sending = sending_items(load, role=role, tensor=tensor, phases=phases)
        return EnginesHeld(_held(generating, phases), _held(sending, phases))


def _held(items: tuple[MemoryItem, ...], phases: Sequence[Phase]) -> Held:
    sums = sum_by_phase(items)
    own = {phase: sums.get(phase, 0) for phase in phases if phase is not IDLE}
    return Held(sums.get(IDLE, 0), own)


@dataclass(frozen=True, eq=False)
class Room:
    """The devices of a placement, and what they have beside what every process takes."""

    places: tuple[tuple[DeviceGroup, Phase], ...]
    """Of each cell: the devices, and the phase."""
    spare: Cells
    """What there is."""
    offload: OffloadChoice
    """Which roles leave their devices."""

    def of_role(self, role: str, held: Held) -> Cells:
        """What a role takes of it."""
        return tuple(
            held.in_phase(phase) if role in group.roles else 0 for group, phase in self.places
        )

    def of_engines(self, role: str, held: EnginesHeld, kv_cache_bytes: int) -> Cells:
        """What its engines take."""
        generates = call_phase(role, CallKind.GENERATE)
        return tuple(
            held.generating.in_phase(phase) + (kv_cache_bytes if phase == generates else 0)
            if role in group.generating
            else held.sending.in_phase(phase)
            if role in group.roles
            else 0
            for group, phase in self.places
        )

    def caches_of(self, role: str) -> tuple[int, ...]:
        """The cells that hold its engines' caches."""
        generates = call_phase(role, CallKind.GENERATE)
        return tuple(
            number
            for number, (group, phase) in enumerate(self.places)
            if role in group.generating and phase == generates
        )


def room_of(
    problem: PlanningProblem, groups: Sequence[DeviceGroup], offload: OffloadChoice
) -> Room:
    """The room that devices have.

    Args:
        problem: what is planned.
        groups: all devices, by what they hold.
        offload: which roles leave them.
    """
    places, spare = [], []
    for group in groups:
        phases = job_phases(problem, group, offload.roles)
        pool = group.pool
        taken = [
            *process_items(pool.device, pool.memory_bytes_per_device, phases),
            *required_standby(problem.fixed, pool, phases),
        ]
        places += [(group, phase) for phase in phases]
        spare += [pool.memory_bytes_per_device - sum(each.bytes for each in taken)] * len(phases)
    return Room(tuple(places), tuple(spare), offload)


def uncut(place: RolePlace) -> RolePlace:
    """Where a role is, whatever its cut and the size of its engines."""
    return RolePlace(CallPlace(place.training.mesh), CallPlace(place.generation.mesh))
