"""All memory of a group's devices but that of generation, phase by phase."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from rlhf_api import RLHFJob
from rlhf_api.calls import IDLE, CallKind, Phase
from rlhf_api.plan import GraphName
from rlhf_api.spec.resources import Device
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles
from rlhf_flow.planning.device_groups import DeviceGroup
from rlhf_flow.planning.generation import GroupMemory
from rlhf_flow.planning.memory import RoleModel, process_items
from rlhf_flow.planning.offloading import OffloadChoice, phases_on_device, roles_on_device
from rlhf_flow.planning.role_memory import checkpoint_items, role_items
from rlhf_flow.planning.standby import required_standby

Graphs = Mapping[GraphName, Graph]

MODEL_CALLS = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
"""Kinds of calls for which a device may hold a role."""


def job_phases(
    graphs: Graphs, group: DeviceGroup, offloaded: Collection[str] = ()
) -> tuple[Phase, ...]:
    """The phases in which the memory of a group's devices differs: those of calls that they run,
    the transition of new weights, and copies from or to a role that is offloaded."""
    calls = [
        Phase(role=call.role, kind=call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(*MODEL_CALLS)
        if call.role is not None
        and call.role in (group.generating if call.kind is CallKind.GENERATE else group.roles)
    ]
    engines = [
        Phase(role=name, kind=kind)
        for name, role in job_roles(graphs).items()
        if role.generates
        for kind, here in (
            (CallKind.RESHARD, {*group.roles, *group.generating}),
            (CallKind.GENERATE, group.generating),
        )
        if name in here
    ]
    copies = [
        Phase(role=call.role, kind=call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.COPY)
        if call.role is not None
        and call.role in group.roles
        and roles_on_device(call) & {*offloaded}
    ]
    return tuple(dict.fromkeys([*engines, *calls, *copies])) or (IDLE,)


def static_memory(
    job: RLHFJob,
    graphs: Graphs,
    group: DeviceGroup,
    models: Sequence[RoleModel],
    offload: OffloadChoice,
) -> GroupMemory:
    """All memory of a group's devices but that of generation."""
    pool, phases = group.pool, job_phases(graphs, group, offload.roles)
    calls = [call for graph in graphs.values() for call in graph.calls]
    items = [
        *process_items(pool.device, pool.memory_bytes_per_device, phases),
        *required_standby(job, pool, phases),
    ]
    for model in models:
        if model.role not in group.roles:
            continue
        own = phases_on_device(model.role, calls)
        items += role_items(model, phases, offload.depth_of(model.role), own)
        if pool.device is Device.CPU and _saves_while_training(job):
            items += checkpoint_items(model, phases)
    return GroupMemory(group, phases, tuple(items))


def _saves_while_training(job: RLHFJob) -> bool:
    """Whether a copy of the state is written beside steps; the last one has none beside it."""
    return job.spec.checkpoint.every_steps > 0 or job.spec.schedule.warm_start is not None
