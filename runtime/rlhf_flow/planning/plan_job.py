"""From a job's graphs and devices to its plan.

Placement says which ranks hold each model and which generate with it, training how it is cut. What
is decided here is generation: which ranks an engine spans, how large its cache is, and whether it
gives its memory back while others work.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress

from rlhf_api import RLHFJob
from rlhf_api.plan import (
    CallKind,
    GenerationPlan,
    GraphName,
    Mesh,
    Plan,
    PoolPlan,
    RolePlan,
    phase_name,
)
from rlhf_api.plan_memory import MemoryPlan, sum_by_phase
from rlhf_api.spec.placement import PlacementType, RoleCalls
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles, policy_of
from rlhf_flow.planning.call_plans import CallMeshes, call_plans
from rlhf_flow.planning.copies import check_copies
from rlhf_flow.planning.device_groups import DeviceGroup, device_groups
from rlhf_flow.planning.generation import (
    EngineChoice,
    GroupMemory,
    choose_generation,
    generation_loads,
)
from rlhf_flow.planning.inventory import DeviceInventory, device_of, limit_devices
from rlhf_flow.planning.memory import RoleModel, process_item
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.offloading import (
    OffloadChoice,
    offload_choices,
    offload_reasons,
    phases_on_device,
    roles_on_device,
)
from rlhf_flow.planning.placement import RolePlace, place_everywhere, place_roles
from rlhf_flow.planning.plan_reasons import micro_batch_reasons, plan_reasons
from rlhf_flow.planning.role_memory import checkpoint_items, role_items
from rlhf_flow.planning.role_models import (
    default_micro_batches,
    longest_sequence_tokens,
    role_models,
)
from rlhf_flow.planning.role_sets import place_sets, role_sets, set_multiples
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.standby import required_standby, with_standby
from rlhf_flow.planning.training_mesh import cut_meshes

Graphs = Mapping[GraphName, Graph]

MODEL_CALLS = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
"""Kinds of calls for which a device may hold a role."""

IDLE = "idle"
"""The phase of devices that take part in no call."""


def plan_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[DeviceInventory],
    shapes: Mapping[str, DecoderShape],
) -> Plan:
    """The plan of a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may take fewer.
        shapes: of every role with a model.

    Raises:
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, or weights that would be
            copied between devices or engines.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    pools = tuple(limit_devices(pool, job.spec.placement) for pool in devices)
    places = _places(job, graphs, shapes, pools)
    meshes = cut_meshes(job, places, shapes, pools)
    check_offered(graphs, pools, places)
    check_copies(graphs, meshes, shapes)
    *better, last = [
        (tokens, offload)
        for offload in offload_choices(job, device_groups(pools, places))
        for tokens in default_micro_batches(job, graphs, device_of(pools))
    ]
    for choice in better:
        with suppress(DoesNotFit):
            return _plan(job, graphs, pools, places, meshes, shapes, *choice)
    try:
        return _plan(job, graphs, pools, places, meshes, shapes, *last)
    except DoesNotFit as error:
        raise DoesNotFit(f"{error}{last[1].note}") from error


def _plan(
    job: RLHFJob,
    graphs: Graphs,
    pools: Sequence[DeviceInventory],
    places: Mapping[str, RolePlace],
    meshes: Mapping[str, Mesh],
    shapes: Mapping[str, DecoderShape],
    default_tokens: int,
    offload: OffloadChoice,
) -> Plan:
    """The plan with a default of training.microBatchTokens and roles that are offloaded."""
    models = role_models(job, graphs, device_of(pools), meshes, shapes, default_tokens)
    groups = device_groups(pools, places)
    static = [_static_memory(job, graphs, group, models, offload) for group in groups]
    loads = [generation_loads(job, pool, models, places) for pool in pools]
    choices = [
        choose_generation(
            job, pool, of_pool, tuple(each for each in static if each.group.pool == pool)
        )
        for pool, of_pool in zip(pools, loads, strict=True)
    ]
    found = tuple(each for choice in choices for each in choice.memory)
    memory, standby, standby_reason = with_standby(job, found)
    engines = {engine.role: engine for choice in choices for engine in choice.engines}
    policy = policy_of(graphs[GraphName.STEP])
    return Plan(
        job=job.name,
        pools=tuple(map(_pool_plan, pools)),
        roles=_role_plans(job, graphs, models, offload),
        calls=call_plans(job, graphs, CallMeshes(meshes, engines, policy), offload),
        inputs={name: graph.inputs for name, graph in graphs.items()},
        policy=policy,
        generations=tuple(_generation_plan(job, graphs, engine) for engine in engines.values()),
        memory=tuple(map(_memory_plan, memory)),
        standby=standby,
        reasons=(
            *plan_reasons(job, groups, choices, ChainMap(*map(dict, loads))),
            *micro_batch_reasons(job, models, default_tokens),
            *offload_reasons(offload, device_of(pools), [each.items for each in memory]),
            standby_reason,
        ),
    )


def _places(
    job: RLHFJob,
    graphs: Graphs,
    shapes: Mapping[str, DecoderShape],
    pools: Sequence[DeviceInventory],
) -> Mapping[str, RolePlace]:
    """Where each role with a model is, by the manifest's placement."""
    kind = job.spec.placement.type
    if kind in (PlacementType.SPLIT, PlacementType.STANDALONE):
        roles = job_roles(graphs)
        sets = role_sets(kind, roles, policy_of(graphs[GraphName.STEP]))
        multiples = set_multiples(job, sets)
        return place_everywhere(place_sets(sets, roles, shapes, pools, multiples))
    return place_roles(job, {role: _kinds(graphs, role) for role in shapes}, pools)


def _kinds(graphs: Graphs, role: str) -> frozenset[RoleCalls]:
    """Of a role's calls."""
    calls = (call for graph in graphs.values() for call in graph.of_kind(*MODEL_CALLS))
    return frozenset(RoleCalls(call.kind.value) for call in calls if call.role == role)


def job_phases(
    graphs: Graphs, group: DeviceGroup, offloaded: Collection[str] = ()
) -> tuple[str, ...]:
    """The phases in which the memory of a group's devices differs: those of calls that they run,
    the transition of new weights, and copies from or to a role that is offloaded."""
    names = [
        phase_name(call.role, call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(*MODEL_CALLS)
        if call.role is not None
        and call.role in (group.generating if call.kind is CallKind.GENERATE else group.roles)
    ]
    engines = [
        phase_name(name, kind)
        for name, role in job_roles(graphs).items()
        if role.generates
        for kind, here in (
            (CallKind.RESHARD, {*group.roles, *group.generating}),
            (CallKind.GENERATE, group.generating),
        )
        if name in here
    ]
    copies = [
        phase_name(call.role, call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.COPY)
        if call.role is not None
        and call.role in group.roles
        and roles_on_device(call) & {*offloaded}
    ]
    return tuple(dict.fromkeys([*engines, *names, *copies])) or (IDLE,)


def _static_memory(
    job: RLHFJob,
    graphs: Graphs,
    group: DeviceGroup,
    models: Sequence[RoleModel],
    offload: OffloadChoice,
) -> GroupMemory:
    """All memory of a group's devices but that of generation."""
    pool, phases = group.pool, job_phases(graphs, group, offload.roles)
    calls = [call for graph in graphs.values() for call in graph.calls]
    items = [process_item(pool.device, phases), *required_standby(job, pool, phases)]
    for model in models:
        if model.role not in group.roles:
            continue
        held = phases
        if model.role in offload.roles:
            own = phases_on_device(model.role, calls)
            held = tuple(phase for phase in phases if phase in own)
        items += role_items(model, phases, held)
        if pool.device is Device.CPU and _saves_while_training(job):
            items += checkpoint_items(model, phases)
    return GroupMemory(group, phases, tuple(items))


def _saves_while_training(job: RLHFJob) -> bool:
    """Whether a copy of the state is written beside steps; the last one has none beside it."""
    return job.spec.checkpoint.every_steps > 0 or job.spec.schedule.warm_start is not None


def _pool_plan(pool: DeviceInventory) -> PoolPlan:
    return PoolPlan(
        name=pool.pool,
        device=pool.device,
        nodes=pool.nodes,
        devices_per_node=pool.devices_per_node,
        memory_bytes_per_device=pool.memory_bytes_per_device,
    )


def _memory_plan(memory: GroupMemory) -> MemoryPlan:
    group = memory.group
    return MemoryPlan(
        pool=group.pool.pool,
        first_rank=group.first_rank,
        num_devices=group.num_devices,
        capacity_bytes=group.pool.memory_bytes_per_device,
        items=memory.items,
        peaks=sum_by_phase(memory.items),
    )


def _role_plans(
    job: RLHFJob, graphs: Graphs, models: tuple[RoleModel, ...], offload: OffloadChoice
) -> tuple[RolePlan, ...]:
    by_name = {model.role: model for model in models}
    plans = []
    for role in job_roles(graphs):
        if role not in by_name:
            plans.append(RolePlan(role=role))
            continue
        model = by_name[role]
        plans.append(
            RolePlan(
                role=role,
                head=model.head,
                is_trained=model.is_trained,
                generates=model.generates,
                origin=job.spec.origin_of(role),
                mesh=model.mesh,
                engine=model.engine,
                num_parameters=model.num_parameters,
                precision=model.precision,
                micro_batch_tokens=model.micro_batch_tokens,
                is_saved=model.is_saved,
                is_offloaded=role in offload.roles,
            )
        )
    return tuple(plans)


def _generation_plan(job: RLHFJob, graphs: Graphs, engine: EngineChoice) -> GenerationPlan:
    return GenerationPlan(
        role=engine.role,
        mesh=engine.mesh,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
        max_sequence_tokens=longest_sequence_tokens(job),
        release_during_training=engine.release,
        max_samples_per_prompt=_max_samples(graphs, engine.role),
    )


def _max_samples(graphs: Graphs, role: str) -> int:
    made = [
        graph.rows[call.id].most
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.GENERATE)
        if call.role == role
    ]
    return max(made)
