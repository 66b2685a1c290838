"""From a job's graphs and devices to its plan.

Placement says which ranks hold each model, training how it is cut over them. What is decided here
is generation: which ranks an engine spans, how large its cache is, and whether it gives its memory
back while others work.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Mapping, Sequence

from rlhf_api import RLHFJob
from rlhf_api.plan import (
    CallKind,
    CallPlan,
    GenerationPlan,
    GraphName,
    Mesh,
    Plan,
    PoolPlan,
    RolePlan,
    phase_name,
)
from rlhf_api.plan_memory import MemoryPlan, sum_by_phase
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.calls import ModelCall, TrainOptions
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.graph import Graph
from rlhf_flow.job_graphs import job_roles, policy_of
from rlhf_flow.planning.copies import check_copies
from rlhf_flow.planning.generation import (
    EngineChoice,
    GenerationChoice,
    GroupMemory,
    Loads,
    cache_reason,
    choose_generation,
    generation_loads,
)
from rlhf_flow.planning.generation_groups import grouping_reason
from rlhf_flow.planning.generation_memory import GenerationLoad
from rlhf_flow.planning.inventory import DeviceInventory, device_of, limit_devices
from rlhf_flow.planning.memory import RoleModel, process_item
from rlhf_flow.planning.offered import check_offered
from rlhf_flow.planning.placement import DeviceGroup, device_groups, place_roles
from rlhf_flow.planning.refusal import format_bytes
from rlhf_flow.planning.role_memory import checkpoint_items, role_items
from rlhf_flow.planning.role_models import (
    MICRO_BATCH_TOKENS,
    default_micro_batches,
    longest_sequence_tokens,
    role_models,
)
from rlhf_flow.planning.role_sets import place_sets, role_sets, set_multiples
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.standby import required_standby, with_standby
from rlhf_flow.planning.training_mesh import cut_meshes
from rlhf_flow.planning.transitions import with_transitions

Graphs = Mapping[GraphName, Graph]

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
        InvalidPlacement: groups that do not fit the roles or the pools.
        NotOffered: several roles that generate on the same GPUs or on some of
            a pool's devices, weights that would be copied between devices, or a family of models
            that an engine does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads, layers or their width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    pools = tuple(limit_devices(pool, job.spec.placement) for pool in devices)
    meshes = _meshes(job, graphs, shapes, pools)
    check_offered(graphs, pools, meshes)
    check_copies(job, graphs, meshes, shapes)
    *better, last = default_micro_batches(job, graphs, device_of(pools))
    for tokens in better:
        try:
            return _plan(job, graphs, pools, meshes, shapes, tokens)
        except DoesNotFit:
            continue
    return _plan(job, graphs, pools, meshes, shapes, last)


def _plan(
    job: RLHFJob,
    graphs: Graphs,
    pools: Sequence[DeviceInventory],
    meshes: Mapping[str, Mesh],
    shapes: Mapping[str, DecoderShape],
    default_tokens: int,
) -> Plan:
    """The plan with a default of training.microBatchTokens."""
    models = role_models(job, graphs, device_of(pools), meshes, shapes, default_tokens)
    groups = device_groups(pools, meshes)
    static = [_static_memory(job, graphs, group, models) for group in groups]
    loads = [generation_loads(job, pool, models) for pool in pools]
    choices = [
        choose_generation(
            job, pool, of_pool, tuple(each for each in static if each.group.pool == pool)
        )
        for pool, of_pool in zip(pools, loads, strict=True)
    ]
    found = tuple(each for choice in choices for each in choice.memory)
    memory, standby, standby_reason = with_standby(job, found)
    engines = {engine.role: engine for choice in choices for engine in choice.engines}
    releases = {e.role for choice in choices if choice.release for e in choice.engines}
    policy = policy_of(graphs[GraphName.STEP])
    return Plan(
        job=job.name,
        pools=tuple(map(_pool_plan, pools)),
        roles=_role_plans(job, graphs, models),
        calls=_call_plans(job, graphs, meshes, engines, policy, releases),
        inputs={name: graph.inputs for name, graph in graphs.items()},
        policy=policy,
        generations=tuple(
            _generation_plan(job, graphs, engine, choice.release)
            for choice in choices
            for engine in choice.engines
        ),
        memory=tuple(map(_memory_plan, memory)),
        standby=standby,
        reasons=(
            *_reasons(job, groups, choices, ChainMap(*map(dict, loads))),
            *_micro_batch_reasons(job, models, default_tokens),
            standby_reason,
        ),
    )


def _meshes(
    job: RLHFJob,
    graphs: Graphs,
    shapes: Mapping[str, DecoderShape],
    pools: Sequence[DeviceInventory],
) -> Mapping[str, Mesh]:
    """The ranks of each role with a model, by the manifest's placement, and how they are cut."""
    kind = job.spec.placement.type
    if kind in (PlacementType.SPLIT, PlacementType.STANDALONE):
        roles = job_roles(graphs)
        sets = role_sets(kind, roles, policy_of(graphs[GraphName.STEP]))
        multiples = set_multiples(job, sets)
        placed = place_sets(sets, roles, shapes, pools, multiples)
    else:
        placed = place_roles(job, tuple(shapes), pools)
    return cut_meshes(job, placed, shapes, pools)


def job_phases(graphs: Graphs, held: Sequence[str]) -> tuple[str, ...]:
    """The phases in which the memory of devices differs: those of calls of the roles that they
    hold, and the transition of new weights."""
    kinds = (CallKind.GENERATE, CallKind.INFER, CallKind.TRAIN)
    names = [
        phase_name(call.role, call.kind)
        for graph in graphs.values()
        for call in graph.of_kind(*kinds)
        if call.role is not None and call.role in held
    ]
    generating = [name for name, role in job_roles(graphs).items() if role.generates]
    engines = [
        name
        for role in generating
        if role in held
        for name in (phase_name(role, CallKind.RESHARD), phase_name(role, CallKind.GENERATE))
    ]
    return tuple(dict.fromkeys([*engines, *names])) or (IDLE,)


def _static_memory(
    job: RLHFJob, graphs: Graphs, group: DeviceGroup, models: Sequence[RoleModel]
) -> GroupMemory:
    """All memory of a group's devices but that of generation."""
    pool, phases = group.pool, job_phases(graphs, group.roles)
    items = [process_item(pool.device, phases), *required_standby(job, pool, phases)]
    for model in models:
        if model.role not in group.roles:
            continue
        items += role_items(model, phases)
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
    job: RLHFJob, graphs: Graphs, models: tuple[RoleModel, ...]
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
            )
        )
    return tuple(plans)


def _generation_plan(
    job: RLHFJob, graphs: Graphs, engine: EngineChoice, release: bool
) -> GenerationPlan:
    return GenerationPlan(
        role=engine.role,
        mesh=engine.mesh,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_concurrent_sequences=job.spec.rollout.max_concurrent_sequences,
        max_sequence_tokens=longest_sequence_tokens(job),
        release_during_training=release,
        max_samples_per_prompt=_max_samples(graphs, engine.role),
    )


def _call_plans(
    job: RLHFJob,
    graphs: Graphs,
    meshes: Mapping[str, Mesh],
    engines: Mapping[str, EngineChoice],
    policy: str,
    releases: Collection[str],
) -> tuple[CallPlan, ...]:
    def share_ranks(role: str, other: str) -> bool:
        one, two = meshes[role], meshes.get(other)
        return two is not None and one.pool == two.pool and bool({*one.ranks} & {*two.ranks})

    def mesh(call: ModelCall) -> Mesh | None:
        match call.kind:
            case CallKind.SCORE | CallKind.SAVE:
                return None
            case CallKind.GENERATE | CallKind.RESHARD | CallKind.RELEASE:
                assert call.role is not None
                return engines[call.role].mesh
            case _:  # numerics without a model run beside the policy, which trains on them
                return meshes[call.role or policy]

    return tuple(
        CallPlan(
            graph=name,
            call=call.id,
            role=call.role,
            method=call.method,
            kind=call.kind,
            mesh=mesh(call),
            reads=call.reads,
            writes=call.writes,
            mini_batches=_mini_batches(job, call),
            expected_count=graph.expected_count(call.id),
        )
        for name, graph in graphs.items()
        for call in with_transitions(graph.calls, releases, share_ranks)
    )


def _mini_batches(job: RLHFJob, call: ModelCall) -> int:
    """Parts of a batch; a loss that makes one update has it whole."""
    if not isinstance(call.options, TrainOptions) or call.options.loss.updates(2) == 1:
        return 1
    return job.spec.schedule.updates_per_epoch


def _max_samples(graphs: Graphs, role: str) -> int:
    made = [
        graph.rows[call.id].most
        for graph in graphs.values()
        for call in graph.of_kind(CallKind.GENERATE)
        if call.role == role
    ]
    return max(made)


def _reasons(
    job: RLHFJob,
    groups: Sequence[DeviceGroup],
    choices: Sequence[GenerationChoice],
    loads: Loads,
) -> tuple[str, ...]:
    kind = job.spec.placement.type
    reasons = [_placement_reason(group, len(groups), kind) for group in groups]
    for choice in choices:
        for engine in choice.engines:
            reasons += _engine_reasons(job, choice, engine, loads[engine.role])
        if choice.engines:
            reasons.append(
                "generation's weights and cache are freed while no call generates: they do not fit "
                "beside the other phases"
                if choice.release
                else "generation's weights and cache stay: they fit beside all other phases"
            )
    return tuple(reasons)


def _micro_batch_reasons(
    job: RLHFJob, models: Sequence[RoleModel], default_tokens: int
) -> tuple[str, ...]:
    """That micro-batches are smaller than they would be with more memory."""
    chosen = [
        model.role
        for model in models
        if job.spec.model_for(model.role).training.micro_batch_tokens is None
        and default_tokens < MICRO_BATCH_TOKENS[model.device]
    ]
    if not chosen:
        return ()
    best = max(MICRO_BATCH_TOKENS[model.device] for model in models)
    return (
        f"micro-batches of {', '.join(chosen)} have up to {default_tokens} tokens: the most, of "
        f"{best} halved again and again, with which everything fits",
    )


def _placement_reason(group: DeviceGroup, num_groups: int, kind: PlacementType) -> str:
    if num_groups == 1:
        return f"every role is on every device of pool {group.pool.pool}: calls take turns"
    held = ", ".join(group.roles) or "no role, so nothing happens there"
    why = {
        PlacementType.SPLIT: "as placement Split puts language models and scalar models apart",
        PlacementType.STANDALONE: "as placement Standalone gives each role devices of its own",
    }
    return f"{group}: {held}, {why.get(kind, 'as placement.groups says')}"


def _engine_reasons(
    job: RLHFJob, choice: GenerationChoice, engine: EngineChoice, load: GenerationLoad
) -> Iterator[str]:
    is_given = job.spec.rollout.parallelism.tensor is not None
    yield (
        f"ranks that a generation engine of {engine.role} spans: {engine.mesh.tensor}, "
        + (
            "as rollout.parallelism.tensor says"
            if is_given
            else "the smallest power of two with which everything fits"
        )
    )
    if engine.mesh.tensor > 1:
        yield grouping_reason(engine.role, load.trained, engine.mesh)
    yield (
        f"its cache has {format_bytes(engine.kv_cache_bytes)} on each device: "
        + cache_reason(job, choice, engine.role)
    )
