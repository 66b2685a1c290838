"""The plan of one pool with every role on every device.

Training and inference shard over all devices. What is decided here is generation: over how many
ranks an engine spans, how large its cache is, and whether it gives its memory back while others
work.
"""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api import RLHFJob
from rlhf_api.plan import (
    CallKind,
    CallPlan,
    GenerationPlan,
    GraphName,
    MemoryItem,
    MemoryPlan,
    Mesh,
    Plan,
    PoolPlan,
    RolePlan,
    phase_name,
    sum_by_phase,
)
from rlhf_api.spec.resources import Device
from rlhf_flow.calls import ModelCall
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import ACTOR
from rlhf_flow.planning.generation import (
    GenerationChoice,
    cache_reason,
    choose_generation,
    generation_load,
)
from rlhf_flow.planning.inventory import DeviceInventory, limit_devices
from rlhf_flow.planning.memory import RoleModel, checkpoint_items, process_item, role_items
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.refusal import format_bytes
from rlhf_flow.planning.role_models import job_roles, role_models
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.standby import required_standby, with_standby


def plan_job(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    devices: DeviceInventory,
    shapes: Mapping[str, DecoderShape],
) -> Plan:
    """The plan of a job on one pool.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: the pool; placement.maxDevices may take fewer.
        shapes: of every role with a model.

    Raises:
        NotOffered: flow.repeat, which this version does not have.
        DoesNotDivide: a tensor parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    check_offered(graphs)
    pool = limit_devices(devices, job.spec.placement)
    models = role_models(job, graphs, pool, shapes)
    phases = job_phases(graphs)
    static = _static_items(job, pool, models, phases)
    choice = choose_generation(job, pool, models, phases, static)
    choice, standby, standby_reason = with_standby(job, pool, phases, choice)
    return Plan(
        job=job.name,
        pools=(
            PoolPlan(
                name=pool.pool,
                device=pool.device,
                nodes=pool.nodes,
                devices_per_node=pool.devices_per_node,
                memory_bytes_per_device=pool.memory_bytes_per_device,
                roles=tuple(model.role for model in models),
            ),
        ),
        roles=_role_plans(job, graphs, models),
        calls=_call_plans(graphs, pool, choice.tensor),
        generation=GenerationPlan(
            tensor=choice.tensor,
            data=pool.num_devices // choice.tensor,
            kv_cache_bytes=choice.kv_cache_bytes,
            max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
            max_sequence_tokens=generation_load(job, pool, models).max_sequence_tokens,
            release_during_training=choice.release,
            max_samples_per_prompt=_max_samples(graphs),
        ),
        memory=MemoryPlan(
            capacity_bytes=pool.memory_bytes_per_device,
            items=choice.items,
            peaks=sum_by_phase(choice.items),
        ),
        standby=standby,
        reasons=(*_reasons(job, graphs, pool, choice), standby_reason),
    )


def job_phases(graphs: Mapping[GraphName, Graph]) -> tuple[str, ...]:
    """The phases in which memory differs: those of calls, and the transition of new weights."""
    kinds = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
    names = [
        phase_name(call.role, call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(*kinds)
    ]
    return tuple(
        dict.fromkeys([f"{ACTOR}.transition", phase_name(ACTOR, CallKind.GENERATE), *names])
    )


def _static_items(
    job: RLHFJob,
    pool: DeviceInventory,
    models: tuple[RoleModel, ...],
    phases: tuple[str, ...],
) -> tuple[MemoryItem, ...]:
    """All memory of a device but that of generation."""
    items = [process_item(pool.device, phases), *required_standby(job, pool, phases)]
    for model in models:
        items += role_items(model, pool.num_devices, phases)
        if pool.device is Device.CPU and _saves_while_training(job):
            items += checkpoint_items(model, pool.num_devices, phases)
    return tuple(items)


def _saves_while_training(job: RLHFJob) -> bool:
    """Whether a copy of the state is written beside steps; the last one has none beside it."""
    return job.spec.checkpoint.every_steps > 0 or job.spec.schedule.warm_start is not None


def _role_plans(
    job: RLHFJob, graphs: Mapping[GraphName, Graph], models: tuple[RoleModel, ...]
) -> tuple[RolePlan, ...]:
    by_name = {model.role: model for model in models}
    plans = []
    for role, kind in job_roles(graphs).items():
        if role not in by_name:
            plans.append(RolePlan(role=role, kind=kind))
            continue
        model = by_name[role]
        plans.append(
            RolePlan(
                role=role,
                kind=kind,
                origin=job.spec.origin_of(role),
                num_parameters=model.num_parameters,
                precision=model.precision,
                micro_batch_tokens=model.micro_batch_tokens,
                is_saved=model.is_saved,
            )
        )
    return tuple(plans)


def _call_plans(
    graphs: Mapping[GraphName, Graph], pool: DeviceInventory, tensor: int
) -> tuple[CallPlan, ...]:
    return tuple(
        CallPlan(
            graph=name,
            call=call.id,
            role=call.role,
            method=call.method,
            kind=call.kind,
            pool=None if call.kind is CallKind.SCORE else pool.pool,
            mesh=_mesh(call, pool, tensor),
            reads=call.reads,
            writes=call.writes,
            expected_count=graph.expected_count(call.id),
        )
        for name, graph in graphs.items()
        for call in graph.calls
    )


def _max_samples(graphs: Mapping[GraphName, Graph]) -> int:
    made = [
        graph.rows[call.id].most
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.GENERATE)
    ]
    return max(made, default=1)


def _mesh(call: ModelCall, pool: DeviceInventory, tensor: int) -> Mesh | None:
    if call.kind is CallKind.SCORE:
        return None
    if call.kind is CallKind.GENERATE:
        return Mesh(data=pool.num_devices // tensor, tensor=tensor)
    return Mesh(data=pool.num_devices)


def _reasons(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pool: DeviceInventory,
    choice: GenerationChoice,
) -> tuple[str, ...]:
    rollout = job.spec.rollout
    reasons = [
        f"every role is on every device of pool {pool.pool}: calls take turns",
        f"ranks that a generation engine spans: {choice.tensor}, "
        + (
            "as rollout.parallelism.tensor says"
            if rollout.parallelism.tensor is not None
            else "the smallest power of two with which everything fits"
        ),
        f"the cache has {format_bytes(choice.kv_cache_bytes)} on each device: "
        + cache_reason(job, choice, pool),
        "generation's weights and cache are freed while no call generates: they do not fit beside "
        "the other phases"
        if choice.release
        else "generation's weights and cache stay: they fit beside all other phases",
    ]
    unused = sorted(set(job.spec.models) - set(job_roles(graphs)))
    if unused:
        reasons.append(
            f"models.{', models.'.join(unused)} not used: the algorithm has the roles "
            f"{', '.join(job_roles(graphs))}"
        )
    return tuple(reasons)
