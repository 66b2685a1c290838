"""All memory of a group's devices but that of generation, phase by phase."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rlhf_api.calls import IDLE, CallKind, Phase, phase_of
from rlhf_api.spec.resources import Device
from rlhf_flow.planning.device_groups import DeviceGroup, GroupMemory
from rlhf_flow.planning.memory import RoleModel, process_items
from rlhf_flow.planning.offloading import OffloadChoice, phases_on_device, roles_on_device
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.role_memory import checkpoint_items, role_items
from rlhf_flow.planning.standby import required_standby

MODEL_CALLS = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
"""Kinds of calls for which a device may hold a role."""


def job_phases(
    problem: PlanningProblem, group: DeviceGroup, offloaded: Collection[str] = ()
) -> tuple[Phase, ...]:
    """The phases in which the memory of a group's devices differs: those of calls that they run,
    the transition of new weights, and copies from or to a role that is offloaded."""
    calls = [
        phase_of(call.role, call.kind)
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(*MODEL_CALLS)
        if call.role is not None
        and call.role in (group.generating if call.kind is CallKind.GENERATE else group.roles)
    ]
    engines = [
        phase_of(role, kind)
        for role, facts in problem.models.items()
        if facts.generates
        for kind, here in (
            (CallKind.RESHARD, {*group.roles, *group.generating}),
            (CallKind.GENERATE, group.generating),
        )
        if role in here
    ]
    copies = [
        phase_of(call.role, call.kind)
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(CallKind.COPY)
        if call.role is not None
        and call.role in group.roles
        and roles_on_device(call) & {*offloaded}
    ]
    return tuple(dict.fromkeys([*engines, *calls, *copies])) or (IDLE,)


def static_memory(
    problem: PlanningProblem,
    group: DeviceGroup,
    models: Sequence[RoleModel],
    offload: OffloadChoice,
) -> GroupMemory:
    """All memory of a group's devices but that of generation."""
    pool, phases = group.pool, job_phases(problem, group, offload.roles)
    calls = [call for graph in problem.graphs.values() for call in graph.calls]
    items = [
        *process_items(pool.device, pool.memory_bytes_per_device, phases),
        *required_standby(problem.fixed, pool, phases),
    ]
    for model in models:
        if model.role not in group.roles:
            continue
        own = phases_on_device(model.role, calls)
        items += role_items(model, phases, offload.depth_of(model.role), own)
        if pool.device is Device.CPU and problem.fixed.saves_while_training:
            items += checkpoint_items(model, phases)
    return GroupMemory(group, phases, tuple(items))
