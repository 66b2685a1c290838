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
    transition_phase,
)
from rlhf_api.spec.resources import Device
from rlhf_flow.calls import ModelCall
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles, policy_of
from rlhf_flow.planning.generation import (
    EngineChoice,
    GenerationChoice,
    cache_reason,
    choose_generation,
    generation_loads,
)
from rlhf_flow.planning.inventory import DeviceInventory, limit_devices
from rlhf_flow.planning.memory import RoleModel, checkpoint_items, process_item, role_items
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.refusal import format_bytes
from rlhf_flow.planning.role_models import longest_sequence_tokens, role_models
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
        NotOffered: flow.repeat, or several roles that generate on GPUs.
        DoesNotDivide: a tensor parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    check_offered(graphs, devices.device)
    pool = limit_devices(devices, job.spec.placement)
    models = role_models(job, graphs, pool, shapes)
    phases = job_phases(graphs)
    static = _static_items(job, pool, models, phases)
    choice = choose_generation(job, pool, generation_loads(job, pool, models), phases, static)
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
        calls=_call_plans(graphs, pool, choice),
        inputs={name: graph.inputs for name, graph in graphs.items()},
        policy=policy_of(graphs[GraphName.STEP]),
        generations=tuple(
            _generation_plan(job, graphs, pool, choice, engine) for engine in choice.engines
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
        if call.role is not None
    ]
    generating = [name for name, role in job_roles(graphs).items() if role.generates]
    held = [
        name
        for role in generating
        for name in (transition_phase(role), phase_name(role, CallKind.GENERATE))
    ]
    return tuple(dict.fromkeys([*held, *names]))


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
                num_parameters=model.num_parameters,
                precision=model.precision,
                micro_batch_tokens=model.micro_batch_tokens,
                is_saved=model.is_saved,
            )
        )
    return tuple(plans)


def _generation_plan(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pool: DeviceInventory,
    choice: GenerationChoice,
    engine: EngineChoice,
) -> GenerationPlan:
    return GenerationPlan(
        role=engine.role,
        tensor=engine.tensor,
        data=pool.num_devices // engine.tensor,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
        max_sequence_tokens=longest_sequence_tokens(job),
        release_during_training=choice.release,
        max_samples_per_prompt=_max_samples(graphs, engine.role),
    )


def _call_plans(
    graphs: Mapping[GraphName, Graph], pool: DeviceInventory, choice: GenerationChoice
) -> tuple[CallPlan, ...]:
    return tuple(
        CallPlan(
            graph=name,
            call=call.id,
            role=call.role,
            method=call.method,
            kind=call.kind,
            pool=None if call.kind is CallKind.SCORE else pool.pool,
            mesh=_mesh(call, pool, choice),
            reads=call.reads,
            writes=call.writes,
            expected_count=graph.expected_count(call.id),
        )
        for name, graph in graphs.items()
        for call in graph.calls
    )


def _max_samples(graphs: Mapping[GraphName, Graph], role: str) -> int:
    made = [
        graph.rows[call.id].most
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.GENERATE)
        if call.role == role
    ]
    return max(made)


def _mesh(call: ModelCall, pool: DeviceInventory, choice: GenerationChoice) -> Mesh | None:
    if call.kind is CallKind.SCORE:
        return None
    if call.kind is CallKind.GENERATE:
        assert call.role is not None
        tensor = choice.engine(call.role).tensor
        return Mesh(data=pool.num_devices // tensor, tensor=tensor)
    return Mesh(data=pool.num_devices)


def _reasons(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    pool: DeviceInventory,
    choice: GenerationChoice,
) -> tuple[str, ...]:
    reasons = [f"every role is on every device of pool {pool.pool}: calls take turns"]
    for engine in choice.engines:
        reasons += _engine_reasons(job, pool, choice, engine)
    if choice.engines:
        reasons.append(
            "generation's weights and cache are freed while no call generates: they do not fit "
            "beside the other phases"
            if choice.release
            else "generation's weights and cache stay: they fit beside all other phases"
        )
    roles = job_roles(graphs)
    used = {*roles, *(job.spec.origin_of(name) for name, role in roles.items() if role.head)}
    unused = sorted(set(job.spec.models) - used)
    if unused:
        reasons.append(
            f"models.{', models.'.join(unused)} not used: the algorithm has the roles "
            f"{', '.join(job_roles(graphs))}"
        )
    return tuple(reasons)


def _engine_reasons(
    job: RLHFJob, pool: DeviceInventory, choice: GenerationChoice, engine: EngineChoice
) -> tuple[str, str]:
    is_given = job.spec.rollout.parallelism.tensor is not None
    return (
        f"ranks that a generation engine of {engine.role} spans: {engine.tensor}, "
        + (
            "as rollout.parallelism.tensor says"
            if is_given
            else "the smallest power of two with which everything fits"
        ),
        f"its cache has {format_bytes(engine.kv_cache_bytes)} on each device: "
        + cache_reason(job, choice, engine.role, pool),
    )
