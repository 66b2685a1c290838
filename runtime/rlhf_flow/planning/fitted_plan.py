"""The plan of a job that fits, as data."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace

from rlhf_api.calls import CallKind
from rlhf_api.plan import GenerationPlan, Plan, RolePlan
from rlhf_api.plan_memory import MemoryPlan, phase_peaks
from rlhf_flow.jobs.job_graphs import job_roles
from rlhf_flow.planning.call_plans import CallMeshes, call_plans
from rlhf_flow.planning.device_groups import GroupMemory
from rlhf_flow.planning.fitting import FittedJob
from rlhf_flow.planning.generation import with_groups
from rlhf_flow.planning.generation_choice import EngineChoice
from rlhf_flow.planning.memory_choices import memory_reasons
from rlhf_flow.planning.offloading import offload_reasons
from rlhf_flow.planning.plan_reasons import plan_reasons
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.standby import with_standby


def _with_groups(found: FittedJob) -> FittedJob:
    """The same with engines of those ranks to which fewest weights must be sent."""
    generations = tuple(
        with_groups(choice, loads, pool.devices_per_node)
        for choice, loads, pool in zip(
            found.generations, found.loads, found.placed.problem.pools, strict=True
        )
    )
    return replace(found, generations=generations)


def fitted_plan(found: FittedJob) -> Plan:
    """The plan of a job that fits, with engines of those ranks to which fewest weights are sent."""
    found = _with_groups(found)
    placed, choice, engines = found.placed, found.choice, found.engines
    problem = placed.problem
    held = tuple(each for pool in found.generations for each in pool.memory)
    memory, standby, standby_reason = with_standby(problem.fixed, held)
    meshes = CallMeshes(placed.meshes, engines, problem.policy)
    return Plan(
        job=problem.name,
        pools=problem.pools,
        roles=_role_plans(found),
        calls=call_plans(problem, meshes, choice.offload),
        inputs={name: graph.inputs for name, graph in problem.graphs.items()},
        policy=problem.policy,
        generations=tuple(_generation_plan(problem, engine) for engine in engines.values()),
        memory=tuple(map(_memory_plan, memory)),
        standby=standby,
        reasons=(
            *plan_reasons(
                problem.fixed, placed.groups, found.generations, ChainMap(*map(dict, found.loads))
            ),
            *memory_reasons(problem, found.models, choice, placed.is_chosen),
            *offload_reasons(
                choice.offload,
                problem.device,
                [each.items for each in memory],
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


def _role_plans(found: FittedJob) -> tuple[RolePlan, ...]:
    problem, by_name = found.placed.problem, {model.role: model for model in found.models}
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
                offload=found.choice.offload.depth_of(role),
            )
        )
    return tuple(plans)


def _generation_plan(problem: PlanningProblem, engine: EngineChoice) -> GenerationPlan:
    return GenerationPlan(
        role=engine.role,
        mesh=engine.mesh,
        kv_cache_bytes=engine.kv_cache_bytes,
        max_concurrent_sequences=problem.workload.max_concurrent_sequences,
        max_sequence_tokens=problem.workload.max_sequence_tokens,
        release_during_training=engine.release,
        max_samples_per_prompt=_max_samples(problem, engine.role),
    )


def _max_samples(problem: PlanningProblem, role: str) -> int:
    made = [
        graph.rows[call.id].maximum
        for graph in problem.graphs.values()
        for call in graph.calls_of_kind(CallKind.GENERATE)
        if call.role == role
    ]
    return max(made)
