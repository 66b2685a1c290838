"""Builds the plan of a feasible job, with a sentence for each decision. Pure."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from rlhf_api.calls import CallKind
from rlhf_api.plan import GenerationPlan, GraphName, OffloadDepth, Plan, RolePlan
from rlhf_api.plan_memory import MemoryPlan, phase_peaks
from rlhf_api.plan_text import format_bytes
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import job_roles
from rlhf_planner.feasibility import FeasibleJob, PlacedJob
from rlhf_planner.memory.choices import memory_reasons
from rlhf_planner.memory.engine_groups import grouping_reason
from rlhf_planner.memory.generation import (
    KV_BLOCK_TOKENS,
    GenerationChoice,
    GenerationLoad,
    Loads,
    kv_bytes,
)
from rlhf_planner.memory.generation_choice import with_groups
from rlhf_planner.memory.offloading import (
    FASTEST,
    offload_depths,
    offload_reasons,
    with_standby,
)
from rlhf_planner.placement.parallelism import engine_size_field
from rlhf_planner.placement.placement import DeviceGroup, GroupMemory
from rlhf_planner.placement.strategy import EngineStrategy
from rlhf_planner.plan_calls import call_plans
from rlhf_planner.problem.problem import Constraints, PlanningProblem
from rlhf_planner.simulation.step_tasks import passes_ahead


def plan_reasons(
    fixed: Constraints,
    placed: PlacedJob,
    choices: Sequence[GenerationChoice],
    loads: Loads,
) -> tuple[str, ...]:
    """Explain the devices of roles, and how they generate.

    Args:
        fixed: constraints of the manifest.
        placed: the job, with the engines that were requested.
        choices: how roles generate on each pool.
        loads: loads of each role's engines.
    """
    kind, requested = fixed.placement.type, placed.strategy.engines
    reasons = [_placement_reason(group, len(placed.groups), kind, loads) for group in placed.groups]
    for choice in choices:
        for role, engine in choice.engines.items():
            size_reason = _size_reason(fixed, requested[role])
            reasons += _engine_reasons(fixed, role, engine, loads[role], size_reason)
        if choice.engines:
            reasons.append(
                "generation's weights and cache are freed while no call generates: they do not fit "
                "beside the other phases"
                if any(engine.release for engine in choice.engines.values())
                else f"generation's weights and cache stay: {_no_release_reason(choice)}"
            )
            if all(loads[role].device is Device.CPU for role in choice.engines):
                reasons.append(_packing_reason(choice))
    return tuple(reasons)


def _no_release_reason(choice: GenerationChoice) -> str:
    if choice.release:
        return "nothing else is on the devices that generate"
    return "they fit beside all other phases"


def _packing_reason(choice: GenerationChoice) -> str:
    if all(engine.packs_weights for engine in choice.engines.values()):
        return "generation computes with packed copies of its weights: CPUs are faster with them"
    return "generation computes with its weights as they are: packed copies of them do not fit"


def _roles_of_group(group: DeviceGroup, engines: Collection[str]) -> list[str]:
    """Describe the roles of a group."""
    # Training and generation of a role may be on different groups, which the text then says.
    roles = [
        f"{role} without its generation"
        if role in engines and role not in group.generating
        else role
        for role in group.roles
    ]
    return [
        *roles,
        *(f"generation of {r}" for r in group.generating if r in engines and r not in group.roles),
    ]


def _placement_reason(
    group: DeviceGroup, num_groups: int, kind: PlacementType, engines: Collection[str]
) -> str:
    if num_groups == 1:
        return f"every role is on every device of pool {group.pool.name}: calls take turns"
    roles = ", ".join(_roles_of_group(group, engines)) or "no role, so nothing happens there"
    why = {
        PlacementType.SPLIT: "as placement Split puts language models and scalar models apart",
        PlacementType.STANDALONE: "as placement Standalone gives each role devices of its own",
        PlacementType.AUTO: "the planner's choice",
    }
    return f"{group}: {roles}, {why.get(kind, 'as placement.groups says')}"


def _engine_reasons(
    fixed: Constraints, role: str, engine: EngineStrategy, load: GenerationLoad, size_reason: str
) -> Iterator[str]:
    yield f"ranks that a generation engine of {role} spans: {engine.tensor}, {size_reason}"
    if engine.mesh.tensor > 1:
        yield grouping_reason(role, load.trained, engine.mesh)
    assert engine.kv_cache_bytes is not None
    yield (
        f"its cache has {format_bytes(engine.kv_cache_bytes)} on each device: "
        + _cache_reason(fixed, engine, load)
    )


def _size_reason(fixed: Constraints, requested: EngineStrategy) -> str:
    """Explain the ranks per engine."""
    field = engine_size_field(fixed, requested)
    if field is not None:
        return f"as {field} says"
    # A rule or the search asks for a size; else the first that fits is used.
    return FASTEST if requested.tensor else "the smallest number with which everything fits"


def _cache_reason(fixed: Constraints, engine: EngineStrategy, load: GenerationLoad) -> str:
    """Explain the size of a role's cache."""
    if fixed.kv_cache_bytes is not None:
        return "rollout.kvCacheMemory says so"
    sequences = load.sequences(engine.mesh.data)
    which = (
        "as many as rollout.maxConcurrentSequences"
        if sequences == load.max_concurrent_sequences
        else "as many as an engine gets at once"
    )
    needed = kv_bytes(load, engine.mesh.tensor, sequences)
    if (engine.kv_cache_bytes or 0) >= needed:
        return f"all that {sequences} longest sequences need, {which}"
    return (
        f"what is left over while generation holds its memory; {sequences} longest sequences, "
        f"{which}, would need {format_bytes(needed)}"
    )


def _with_groups(job: FeasibleJob) -> FeasibleJob:
    """Choose the ranks of each engine so that the fewest weights are sent."""
    generations = tuple(
        with_groups(choice, loads, pool.devices_per_node)
        for choice, loads, pool in zip(
            job.generations, job.loads, job.placed.problem.pools, strict=True
        )
    )
    return replace(job, generations=generations)


def build_plan(job: FeasibleJob) -> Plan:
    """Build the plan of a feasible job."""
    # Feasibility does not depend on which ranks form an engine, so only the built plan has groups.
    job = _with_groups(job)
    placed, strategy = job.placed, job.strategy
    problem = placed.problem
    memory_of_groups = tuple(
        group_memory for pool in job.generations for group_memory in pool.memory
    )
    # Standby libraries come last: they get only what everything else leaves.
    memory, standby, standby_reason = with_standby(problem.fixed, memory_of_groups)
    return Plan(
        job=problem.name,
        pools=problem.pools,
        roles=_role_plans(job),
        calls=call_plans(problem, strategy),
        inputs={name: graph.inputs for name, graph in problem.graphs.items()},
        policy=problem.policy,
        generations=tuple(
            _generation_plan(problem, role, engine) for role, engine in strategy.engines.items()
        ),
        memory=tuple(map(_memory_plan, memory)),
        passes_ahead=passes_ahead(problem.graphs[GraphName.STEP]),
        standby=standby,
        reasons=(
            *plan_reasons(problem.fixed, placed, job.generations, ChainMap(*map(dict, job.loads))),
            *memory_reasons(problem, strategy.roles, placed.is_chosen),
            *offload_reasons(
                problem,
                offload_depths(strategy.roles),
                [group_memory.items for group_memory in memory],
                placed.is_chosen,
            ),
            standby_reason,
        ),
    )


def _memory_plan(memory: GroupMemory) -> MemoryPlan:
    group = memory.group
    return MemoryPlan(
        pool=group.pool.name,
        first_rank=group.first_rank,
        num_devices=group.num_devices,
        capacity_bytes=group.pool.memory_bytes_per_device,
        items=memory.items,
        peaks=phase_peaks(memory.items),
    )


def _role_plans(job: FeasibleJob) -> tuple[RolePlan, ...]:
    problem, by_name = job.placed.problem, {model.role: model for model in job.models}
    plans = []
    for role in job_roles(problem.graphs):
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
                origin=problem.models[role].origin,
                mesh=model.mesh,
                engine=model.engine,
                num_parameters=model.num_parameters,
                precision=model.precision,
                micro_batch_tokens=model.micro_batch_tokens,
                recomputes=model.is_trained and model.recompute,
                is_saved=model.is_saved,
                offload=job.strategy.roles[role].offload or OffloadDepth.NOTHING,
            )
        )
    return tuple(plans)


def _generation_plan(problem: PlanningProblem, role: str, engine: EngineStrategy) -> GenerationPlan:
    assert engine.kv_cache_bytes is not None
    return GenerationPlan(
        role=role,
        mesh=engine.mesh,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_concurrent_sequences=problem.workload.max_concurrent_sequences,
        max_sequence_tokens=problem.workload.max_sequence_tokens,
        release_during_training=bool(engine.release),
        packs_weights=bool(engine.packs_weights),
        kv_block_tokens=KV_BLOCK_TOKENS[problem.device],
        max_samples_per_prompt=_max_samples(problem, role),
    )


def _max_samples(problem: PlanningProblem, role: str) -> int:
    samples = [
        graph.rows[call.id].maximum
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(CallKind.GENERATE)
        if call.role == role
    ]
    return max(samples)
