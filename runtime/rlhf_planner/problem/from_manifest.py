"""The planning problem of a manifest, and what a manifest lacks for one (`rlhf fill`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.plan import GraphName, ModelHead, Pool
from rlhf_api.problems import FieldPath
from rlhf_api.quantity import quantity_value
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.conversation import ConversationOrder, EnvironmentSpec
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.models import ModelShape, Offload, TrainingSpec
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.document.manifest_graph import FIELD, build_manifest_graph
from rlhf_flow.errors import ShapeUnknown
from rlhf_flow.jobs.job_graphs import JobRole, job_roles, policy_role, trace_algorithms
from rlhf_flow.jobs.registry import resolve_precision
from rlhf_flow.step.columns import KEPT_TOKENS
from rlhf_flow.trace.graph import Graph
from rlhf_planner.problem.devices import device_of, limit_devices
from rlhf_planner.problem.model_shapes import WELL_KNOWN_MODELS, difference_of, source_shape
from rlhf_planner.problem.problem import (
    Constraints,
    ConversationWorkload,
    FixedStrategy,
    Graphs,
    PlanningProblem,
    RoleSpec,
    Workload,
)
from rlhf_planner.problem.profile import Profile
from rlhf_sizing.shape import DecoderShape


def problem_of(
    job: RLHFJob,
    graphs: Graphs,
    pools: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
    profile: Profile | None = None,
) -> PlanningProblem:
    """Make the planning problem of a job.

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
            role: _role_spec(job, graphs, role, job_role, job_role.head, shapes[role], pools)
            for role, job_role in roles.items()
            if job_role.head is not None
        },
        pools=tuple(limit_devices(pool, job.spec.placement) for pool in pools),
        workload=_workload(job),
        fixed=_fixed(job),
        profile=profile,
    )


def _role_spec(
    job: RLHFJob,
    graphs: Graphs,
    role: str,
    job_role: JobRole,
    head: ModelHead,
    shape: DecoderShape,
    pools: Sequence[Pool],
) -> RoleSpec:
    step, model = graphs[GraphName.STEP], job.spec.model_for(role)
    training, origin = model.training, model.source.same_as or role
    return RoleSpec(
        role=role,
        origin=origin,
        # A role that the manifest leaves out has the training settings of the actor.
        trained_as=role if role in job.spec.models else "actor",
        head=head,
        shape=shape,
        precision=resolve_precision(training.precision, device_of(pools)),
        engine=training.engine,
        is_trained=job_role.is_trained,
        generates=job_role.generates,
        is_saved=_is_saved(job, origin, job_role, policy_role(step)),
        rows_per_prompt=step.max_rows(role),
        rows_together=_rows_together(step, role),
        sequence_parallel=training.parallelism.sequence,
        distributed_optimizer=training.distributed_optimizer,
        fixed=_strategy(training, _offload(job, role, job_role)),
        reads_kept_tokens=any(
            call.role == role and KEPT_TOKENS in call.reads for call in step.calls
        ),
    )


def _strategy(training: TrainingSpec, offload: Offload) -> FixedStrategy:
    return FixedStrategy(
        tensor=training.parallelism.tensor,
        pipeline=training.parallelism.pipeline,
        micro_batch_tokens=training.micro_batch_tokens,
        recompute=training.activation_recompute,
        offload=offload,
    )


def _offload(job: RLHFJob, role: str, job_role: JobRole) -> Offload:
    """The offload setting of a role."""
    requested = job.spec.model_for(role).training.offload
    # A role that is only read has no derived state. If it inherits Derived from the actor, whose
    # model it starts from, that means nothing.
    is_inherited = role not in job.spec.manifest_models and not job_role.is_trained
    return Offload.AUTO if is_inherited and requested is Offload.DERIVED else requested


def _is_saved(job: RLHFJob, origin: str, role: JobRole, policy: str) -> bool:
    """True if checkpoints hold a role's state."""
    # A role is saved if its weights cannot be read from their source again: it is trained, takes
    # over another role's weights, or took those of the policy after a warm start.
    has_warm_start = job.spec.schedule.warm_start is not None
    takes_policys = origin == job.spec.origin_role(policy)
    return role.is_trained or role.takes_weights or (has_warm_start and takes_policys)


def _rows_together(graph: Graph, role: str) -> int:
    """Rows of a prompt that must be on one rank."""
    # A loss that compares the responses of a prompt needs all of them.
    compared = [
        graph.rows[call.id].maximum for call in graph.trainings(role) if call.compares_responses
    ]
    return max(compared, default=1)


def _workload(job: RLHFJob) -> Workload:
    schedule, rollout, evaluation = job.spec.schedule, job.spec.rollout, job.spec.data.evaluation
    # Without an expectation in the manifest, half of the limit.
    response_tokens = rollout.expected_response_tokens or rollout.max_response_tokens / 2
    return Workload(
        prompts_per_step=schedule.prompts_per_step,
        warm_start_rows=schedule.warm_start.prompts_per_step if schedule.warm_start else 0,
        pretraining_rows=job.spec.pretraining_rows_per_step or 0,
        evaluation_prompts=None if evaluation is None else evaluation.most_rows,
        max_prompt_tokens=rollout.max_prompt_tokens,
        max_response_tokens=rollout.max_response_tokens,
        expected_prompt_tokens=rollout.expected_prompt_tokens or rollout.max_prompt_tokens / 2,
        expected_response_tokens=response_tokens,
        max_concurrent_sequences=rollout.max_concurrent_sequences,
        updates_per_epoch=schedule.updates_per_epoch,
        expected_truncated=rollout.expected_truncated,
        conversations=None
        if rollout.environment is None
        else _conversations(rollout.environment, response_tokens),
    )


def _conversations(
    environment: EnvironmentSpec, expected_response_tokens: float
) -> ConversationWorkload:
    limits = environment.limits
    turns = environment.expected_turns or (1 + limits.turns) / 2
    answers = (turns - 1) * limits.answer_tokens / 2
    sampled = 1 - min(0.5, answers / expected_response_tokens)
    return ConversationWorkload(
        turns=turns,
        max_turns=limits.turns,
        sampled_share=environment.expected_sampled or sampled,
        tool_seconds=environment.expected_tool_seconds,
        delay_steps=environment.delay_steps
        if environment.order is ConversationOrder.EXACT
        else None,
        concurrency=environment.concurrency,
    )


def _fixed(job: RLHFJob) -> Constraints:
    rollout, has_warm_start = job.spec.rollout, job.spec.schedule.warm_start is not None
    memory = rollout.kv_cache_memory
    return Constraints(
        placement=job.spec.placement,
        engine_tensor=rollout.parallelism.tensor,
        kv_cache_bytes=None if memory is None else quantity_value(memory),
        kv_cache_memory=memory,
        standby=job.spec.failure_policy.standby,
        # Without `everySteps` and a warm start only the last state is copied, and no step runs
        # then.
        saves_while_training=job.spec.checkpoint.every_steps > 0 or has_warm_start,
        stage_fusion=rollout.stage_fusion
        if rollout.may_migrate_responses
        else StageFusionType.NEVER,
        stage_fusion_threshold=rollout.stage_fusion_threshold,
    )


@dataclass(frozen=True)
class Filling:
    """A field that a manifest lacks, with its value."""

    path: FieldPath
    value: Any
    """Plain value under wire names."""
    about: str
    """The value in a few words."""


def shapes_to_fill(job: RLHFJob, cache: Path) -> Iterator[Filling]:
    """Shapes that a manifest lacks, or that differ from those of its models.

    Args:
        job: the manifest, with paths as seen from here.
        cache: the hub cache of this machine.

    Raises:
        ShapeUnknown: an unknown model whose shape the manifest does not give.
    """
    for role, model in job.spec.manifest_models.items():
        shape, source = model.model.shape, model.model.source
        is_listed = source.path is None and (
            source.hugging_face is None or source.hugging_face in WELL_KNOWN_MODELS
        )
        # Built-in and listed models need no shape in the manifest.
        if shape is None and is_listed:
            continue
        try:
            shape_spec = source_shape(job, role, cache).to_spec()
        except ShapeUnknown as error:
            # The shape in the manifest serves where the model itself cannot be read.
            if shape is not None:
                continue
            raise error.at("spec", *model.location) from error.__cause__
        if shape is None or difference_of(shape, shape_spec) is not None:
            yield Filling(
                ("spec", *model.location, "shape"), _plain(shape_spec), _about(shape_spec)
            )


def graph_to_fill(job: RLHFJob) -> Iterator[Filling]:
    """The graph of a custom algorithm's step, traced from its code.

    Args:
        job: the manifest; its graph is ignored.

    Raises:
        FlowError: a step that cannot be traced, or that cannot work.
        InvalidGraph: a graph that a manifest cannot express.
        ManifestError: rewards that do not match its roles.
    """
    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return
    step = trace_algorithms(job)[GraphName.STEP]
    graph = build_manifest_graph(job, step.algorithm, step.graph)
    calls, roles = (
        f"{len(part)} {noun}{'' if len(part) == 1 else 's'}"
        for part, noun in ((graph.calls, "call"), (graph.roles, "role"))
    )
    yield Filling(FIELD, _plain(graph), f"{calls} of {roles}")


def _plain(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def _about(shape: ModelShape) -> str:
    family = "" if shape.family is None else f"{shape.family.value}, "
    return f"{family}{shape.num_layers} layers of {shape.hidden_size}"
