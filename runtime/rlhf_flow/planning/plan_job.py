"""From a job's graphs and devices to its plan: the first way to compute that fits, or why none
does."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from rlhf_api import RLHFJob
from rlhf_api.calls import CallKind
from rlhf_api.plan import GenerationPlan, GraphName, Plan, Pool, RolePlan
from rlhf_api.plan_memory import MemoryPlan, phase_peaks
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.job_graphs import job_roles, policy_of
from rlhf_flow.planning.advice import advice_lines
from rlhf_flow.planning.call_plans import CallMeshes, call_plans
from rlhf_flow.planning.fitting import FittedJob, Graphs, PlacedJob, fit_job, place_job
from rlhf_flow.planning.generation import EngineChoice, GroupMemory, with_groups
from rlhf_flow.planning.inventory import device_of
from rlhf_flow.planning.memory_choices import memory_choices, memory_reasons, tried
from rlhf_flow.planning.offloading import offload_reasons
from rlhf_flow.planning.plan_reasons import plan_reasons
from rlhf_flow.planning.role_models import longest_sequence_tokens
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.planning.standby import with_standby


def plan_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[Pool],
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
            that generate on the same GPUs or on some of a pool's devices, weights that would be
            copied between devices or engines, or a model that no engine serves.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum, and what would fit.
    """
    placed = place_job(job, graphs, devices, shapes)
    return _plan(_with_groups(_with_less_recomputation(_first_that_fits(placed, devices))))


def _first_that_fits(placed: PlacedJob, devices: Sequence[Pool]) -> FittedJob:
    """The way to compute that takes least time of those that fit.

    Raises:
        DoesNotFit: none does.
    """
    *better, last = memory_choices(placed.job, placed.graphs, placed.groups)
    for choice in better:
        with suppress(DoesNotFit):
            return fit_job(placed, choice)
    try:
        return fit_job(placed, last)
    except DoesNotFit as error:
        lines = [str(error), *tried(last), *advice_lines(placed, devices)]
        raise DoesNotFit("\n".join(lines)) from error


def _with_less_recomputation(found: FittedJob) -> FittedJob:
    """The same where roles keep their activations that need not recompute them."""
    for role in sorted(found.choice.chosen_to_recompute):
        choice = replace(found.choice, recomputed=found.choice.recomputed - {role})
        with suppress(DoesNotFit):
            other = fit_job(found.placed, choice)
            found = other if other.engines == found.engines else found
    return found


def _with_groups(found: FittedJob) -> FittedJob:
    """The same with engines of those ranks to which fewest weights must be sent."""
    generations = tuple(
        with_groups(choice, loads, pool.devices_per_node)
        for choice, loads, pool in zip(
            found.generations, found.loads, found.placed.pools, strict=True
        )
    )
    return replace(found, generations=generations)


def _plan(found: FittedJob) -> Plan:
    """The plan of a job that fits."""
    placed, choice, engines = found.placed, found.choice, found.engines
    job, graphs, device = placed.job, placed.graphs, device_of(placed.pools)
    held = tuple(each for pool in found.generations for each in pool.memory)
    memory, standby, standby_reason = with_standby(job, held)
    policy = policy_of(graphs[GraphName.STEP])
    return Plan(
        job=job.name,
        pools=placed.pools,
        roles=_role_plans(found),
        calls=call_plans(job, graphs, CallMeshes(placed.meshes, engines, policy), choice.offload),
        inputs={name: graph.inputs for name, graph in graphs.items()},
        policy=policy,
        generations=tuple(_generation_plan(job, graphs, engine) for engine in engines.values()),
        memory=tuple(map(_memory_plan, memory)),
        standby=standby,
        reasons=(
            *plan_reasons(job, placed.groups, found.generations, ChainMap(*map(dict, found.loads))),
            *memory_reasons(job, found.models, choice),
            *offload_reasons(choice.offload, device, [each.items for each in memory]),
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
    job, by_name = found.placed.job, {model.role: model for model in found.models}
    plans = []
    for role in job_roles(found.placed.graphs):
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
                recomputes=model.is_trained and model.recompute,
                is_saved=model.is_saved,
                offload=found.choice.offload.depth_of(role),
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
