"""From a manifest to what is planned: the one place where the planner reads it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.plan import GraphName, Head, Pool
from rlhf_api.quantity import whole
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import Offload, TrainingSpec
from rlhf_flow.jobs.job_graphs import JobRole, job_roles, policy_role
from rlhf_flow.jobs.registry import resolve_precision
from rlhf_flow.planning.inventory import device_of, limit_devices
from rlhf_flow.planning.problem import (
    Fixed,
    FixedStrategy,
    Graphs,
    ModelFacts,
    PlanningProblem,
    Workload,
)
from rlhf_flow.planning.seconds.profile import Profile
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.trace.graph import Graph


def problem_of(
    job: RLHFJob,
    graphs: Graphs,
    pools: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
    profile: Profile | None = None,
) -> PlanningProblem:
    """What is to be planned of a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        pools: its devices, all of one kind; placement.maxDevices may leave fewer.
        shapes: of every role with a model.
        profile: measured on such devices, if there is one.
    """
    roles = job_roles(graphs)
    return PlanningProblem(
        name=job.name,
        graphs=graphs,
        models={
            role: _facts(job, graphs, role, found, found.head, shapes[role], pools)
            for role, found in roles.items()
            if found.head is not None
        },
        pools=tuple(limit_devices(pool, job.spec.placement) for pool in pools),
        workload=_workload(job),
        fixed=_fixed(job),
        profile=profile,
    )


def _facts(
    job: RLHFJob,
    graphs: Graphs,
    role: str,
    found: JobRole,
    head: Head,
    shape: DecoderShape,
    pools: Sequence[Pool],
) -> ModelFacts:
    step, model = graphs[GraphName.STEP], job.spec.model_for(role)
    training, origin = model.training, model.source.same_as or role
    return ModelFacts(
        role=role,
        origin=origin,
        trained_as=role if role in job.spec.models else "actor",
        head=head,
        shape=shape,
        precision=resolve_precision(training.precision, device_of(pools)),
        engine=training.engine,
        is_trained=found.is_trained,
        generates=found.generates,
        is_saved=_is_saved(job, origin, found, policy_role(step)),
        rows_per_prompt=step.max_rows(role),
        rows_together=_rows_together(step, role),
        sequence_parallel=training.parallelism.sequence,
        distributed_optimizer=training.distributed_optimizer,
        fixed=_strategy(training, _offload(job, role, found)),
    )


def _strategy(training: TrainingSpec, offload: Offload) -> FixedStrategy:
    return FixedStrategy(
        tensor=training.parallelism.tensor,
        pipeline=training.parallelism.pipeline,
        micro_batch_tokens=training.micro_batch_tokens,
        recompute=training.activation_recompute,
        offload=offload,
    )


def _offload(job: RLHFJob, role: str, found: JobRole) -> Offload:
    """What the manifest says of a role. Nothing can be derived of one that is only read: if it has
    that from the actor, whose model it starts from, nothing is said of it."""
    wanted = job.spec.model_for(role).training.offload
    is_taken_over = role not in job.spec.given_models and not found.is_trained
    return Offload.AUTO if is_taken_over and wanted is Offload.DERIVED else wanted


def _is_saved(job: RLHFJob, origin: str, role: JobRole, policy: str) -> bool:
    """Whether the weights of a role with a model cannot be had from their source any more: it is
    trained, takes over another role's, or took the policy's after a warm start."""
    has_warm_start = job.spec.schedule.warm_start is not None
    takes_policys = origin == job.spec.origin_of(policy)
    return role.is_trained or role.takes_weights or (has_warm_start and takes_policys)


def _rows_together(graph: Graph, role: str) -> int:
    """Rows of a prompt that a role always has on one rank: all where its loss compares them, else
    one."""
    compared = [
        graph.rows[call.id].maximum for call in graph.trainings(role) if call.compares_responses
    ]
    return max(compared, default=1)


def _workload(job: RLHFJob) -> Workload:
    schedule, rollout, held_out = job.spec.schedule, job.spec.rollout, job.spec.data.evaluation
    return Workload(
        prompts_per_step=schedule.prompts_per_step,
        warm_start_rows=schedule.warm_start.prompts_per_step if schedule.warm_start else 0,
        pretraining_rows=job.spec.pretraining_rows_per_step or 0,
        held_out_prompts=None if held_out is None else held_out.max_rows,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        expected_prompt_tokens=rollout.expected_prompt_tokens or rollout.max_prompt_tokens / 2,
        expected_response_tokens=rollout.expected_response_tokens
        or rollout.max_response_tokens / 2,
        max_concurrent_sequences=rollout.max_concurrent_sequences,
        updates_per_epoch=schedule.updates_per_epoch,
    )


def _fixed(job: RLHFJob) -> Fixed:
    rollout, has_warm_start = job.spec.rollout, job.spec.schedule.warm_start is not None
    memory = rollout.kv_cache_memory
    return Fixed(
        placement=job.spec.placement,
        engine_tensor=rollout.parallelism.tensor,
        kv_cache_bytes=None if memory is None else whole(memory),
        kv_cache_memory=memory,
        standby=job.spec.failure_policy.standby,
        # The last copy has no step beside it.
        saves_while_training=job.spec.checkpoint.every_steps > 0 or has_warm_start,
        stage_fusion=rollout.stage_fusion,
        stage_fusion_threshold=rollout.stage_fusion_threshold,
    )
