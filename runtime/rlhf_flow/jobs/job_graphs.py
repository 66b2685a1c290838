"""The algorithms of a job and their graphs: training step, warm start and evaluation.

The graphs decide on the use of a role: it is trained, or generates, if a call does so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, ModelHead
from rlhf_api.problems import Problem
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_api.spec.stopping import TRAIN_ON_ALL, OnStop
from rlhf_flow.document.manifest_graph import (
    answer_columns,
    check_up_to_date,
    data_columns,
    pretraining_rows,
    read_manifest_graph,
)
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.jobs.data_checks import check_all_answers, check_pairs, check_pretraining
from rlhf_flow.jobs.registry import build_algorithm, build_evaluation, build_warm_start
from rlhf_flow.jobs.rollout_checks import check_on_stop, check_truncation
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.columns import (
    PROMPT_COLUMNS,
    scores_column,
    term_scores_column,
)
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.step.roles import RewardSource
from rlhf_flow.trace.graph import Graph, RowCount
from rlhf_flow.trace.source_location import errors_located_at
from rlhf_flow.trace.tracing import trace


@dataclass(frozen=True)
class JobRole:
    """A role and its use in the graphs of a job."""

    head: ModelHead | None
    """ModelHead of its model. None: it has no model."""
    is_trained: bool
    generates: bool
    takes_weights: bool = False
    """True: a call copies the weights of another role into it."""


@dataclass(frozen=True)
class TracedAlgorithm:
    """An algorithm of a job, and its graph."""

    algorithm: Algorithm
    graph: Graph


def trace_algorithms(
    job: RLHFJob, device: Device = Device.CPU
) -> Mapping[GraphName, TracedAlgorithm]:
    """Trace and check the algorithms of a job, in the order of their first run.

    Args:
        job: the manifest.
        device: it decides on the precision `Auto`.

    Raises:
        FlowError: a step that breaks a rule of the flow.
        InvalidAlgorithm: an algorithm that cannot be imported, built or traced, or that trains
            nothing.
        ManifestOutdated: the manifest's graph differs.
        ManifestError: rewards that do not fit its roles.
    """
    step = build_algorithm(job, device)
    graph = _traced(
        job,
        step,
        data_columns(job),
        pretraining_rows(job),
        job.spec.rollout.stop_actions,
        job.spec.rollout.truncation.is_active,
    )
    # These errors are about a user's class, but about no call: name the line of its method.
    with errors_located_at(type(step).step):
        check_step(graph)
    with errors_located_at(type(step).roles):
        check_models(job, graph)
    _check_job(job, graph)
    check_up_to_date(job, step, graph)
    # Traced first, since the others need its policy, but run after a warm start.
    steps = {GraphName.STEP: TracedAlgorithm(step, graph)}
    graphs = _warm_start_and_evaluation(job, graph) | steps
    _check_use_of_rewards(job, [traced.graph for traced in graphs.values()])
    return graphs


def graphs_without_code(job: RLHFJob, device: Device = Device.CPU) -> Mapping[GraphName, Graph]:
    """The checked graphs of a job, without running a user's code.

    The step of a custom algorithm is the manifest's graph; warm start and evaluation follow from
    it.

    Args:
        job: the manifest; with a graph if the algorithm is a custom one.
        device: it decides on the precision `Auto`.

    Raises:
        FlowError: the graph of a step that trains nothing.
        InvalidGraph: the manifest's graph is malformed.
        ManifestError: rewards that do not fit its roles.
    """
    # Built-in algorithms run no user's code.
    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return trace_job(job, device)
    graph = read_manifest_graph(job)
    check_step(graph)
    check_models(job, graph)
    _check_job(job, graph)
    others = _warm_start_and_evaluation(job, graph)
    graphs = {name: traced.graph for name, traced in others.items()} | {GraphName.STEP: graph}
    _check_use_of_rewards(job, list(graphs.values()))
    return graphs


def _traced(
    job: RLHFJob,
    algorithm: Algorithm,
    inputs: frozenset[str],
    pretraining: RowCount | None = None,
    on_stop: OnStop = TRAIN_ON_ALL,
    truncates_sampling: bool = False,
) -> Graph:
    return trace(
        algorithm,
        samples_per_prompt=job.spec.rollout.samples_per_prompt,
        inputs=inputs,
        pretraining=pretraining,
        rewards=reward_terms(job.spec.rewards),
        on_stop=on_stop,
        truncates_sampling=truncates_sampling,
        has_conversations=job.spec.rollout.environment is not None,
    )


def _check_job(job: RLHFJob, graph: Graph) -> None:
    """Check that the rest of a manifest fits the graph of its step."""
    check_pairs(job, graph)
    check_all_answers(job, graph)
    check_pretraining(job, graph)
    check_rewards(job, graph)
    check_on_stop(job, graph, is_scored=bool(reward_roles(graph)))
    check_truncation(job, graph)
    policy = policy_role(graph)
    if graph.roles[policy].head is not ModelHead.LM:
        _check_without_text(job, graph, policy)


def _warm_start_and_evaluation(job: RLHFJob, graph: Graph) -> dict[GraphName, TracedAlgorithm]:
    policy = policy_role(graph)
    # A reward model neither learns from answers nor generates.
    if graph.roles[policy].head is not ModelHead.LM:
        return {}
    # Without rewards in the step, as in DPO, those of the manifest score the evaluation.
    rewards = reward_roles(graph) or tuple(
        dict.fromkeys(reward.role for reward in job.spec.rewards)
    )
    candidates = {
        GraphName.WARM_START: (build_warm_start(job, policy), answer_columns(job)),
        GraphName.EVALUATION: (build_evaluation(job, policy, rewards), PROMPT_COLUMNS),
    }
    return {
        name: TracedAlgorithm(algorithm, _traced(job, algorithm, inputs))
        for name, (algorithm, inputs) in candidates.items()
        if algorithm is not None
    }


def trace_job(job: RLHFJob, device: Device = Device.CPU) -> Mapping[GraphName, Graph]:
    """The graphs of `trace_algorithms`, which has its arguments and errors."""
    return {name: traced.graph for name, traced in trace_algorithms(job, device).items()}


def job_roles(graphs: Mapping[GraphName, Graph]) -> dict[str, JobRole]:
    """The roles of all graphs, the step's first."""
    named = {GraphName.STEP: graphs[GraphName.STEP], **graphs}
    # Reversed, so that the step's kind wins over that of warm start and evaluation.
    kinds = {role: kind for graph in reversed(named.values()) for role, kind in graph.roles.items()}
    ordered = dict.fromkeys(role for graph in named.values() for role in graph.roles)
    trained = _roles_with(graphs, CallKind.TRAIN)
    generating = _roles_with(graphs, CallKind.GENERATE)
    copied_into = _roles_with(graphs, CallKind.COPY)
    return {
        role: JobRole(kinds[role].head, role in trained, role in generating, role in copied_into)
        for role in ordered
    }


def policy_role(graph: Graph) -> str:
    """The role whose model is the result of a job; warm start and evaluation use it.

    It is the first trained role that generates, else the first language model, else the first.

    Args:
        graph: of a step that trains something, or of an evaluation.
    """
    trained = graph.roles_with(CallKind.TRAIN) or graph.roles_with(CallKind.GENERATE)
    generating = [role for role in trained if role in graph.roles_with(CallKind.GENERATE)]
    with_text = [role for role in trained if graph.roles[role].head is ModelHead.LM]
    return (generating or with_text or trained)[0]


def reward_roles(graph: Graph) -> tuple[str, ...]:
    """The roles that score, in the order of the algorithm's roles()."""
    return tuple(role for role, kind in graph.roles.items() if issubclass(kind, RewardSource))


def check_models(job: RLHFJob, graph: Graph) -> None:
    """Refuse a role without a model in the manifest.

    Raises:
        InvalidAlgorithm: there is one.
    """
    models = job.spec.models
    for role, kind in graph.roles.items():
        if kind.head is None or job.spec.has_model_for(role):
            continue
        # Only names that the algorithm does not use: the model of another role is not misspelled.
        near = get_close_matches(role, set(models) - set(graph.roles), n=1)
        meant = f", or rename models.{near[0]} (did you mean {role}?)" if near else ""
        others = ", or models.actor, from whose weights roles start that are left out"
        raise InvalidAlgorithm(
            f"a role without a model: got {', '.join(f'models.{name}' for name in models)} and "
            f"none for {role}, allowed models.{role}{'' if role == 'actor' else others}; add "
            f"models.{role} with its source{meant}"
        )


def check_rewards(job: RLHFJob, graph: Graph) -> None:
    """Refuse rewards whose role is missing or no reward source, and roles without rewards.

    Raises:
        ManifestError: there is one.
    """
    roles = reward_roles(graph)
    allowed = ", ".join(sorted(roles))
    rewarded = [reward.role for reward in job.spec.rewards]
    problems = [
        Problem(
            ("spec", "rewards", index, "role"),
            f"a reward of a role that {'has a model' if role in graph.roles else 'is not there'}",
            got=role,
            allowed=allowed or "any other name",
            do=suggest(role, roles, "correct it"),
        )
        for index, role in enumerate(rewarded)
        if role not in roles and (roles or role in graph.roles)
    ]
    # `<role>_<reward>_scores` may equal another role's `<role>_scores`.
    terms = reward_terms(job.spec.rewards)
    problems += [
        Problem(
            ("spec", "rewards", index, "name"),
            "a reward whose column is another role's score",
            got=f"{reward.name} of {reward.role}, whose scores are {column}",
            allowed="any other name",
            do="rename it",
        )
        for index, reward in enumerate(job.spec.rewards)
        if reward.name in terms[reward.role].columns
        if (column := term_scores_column(reward.role, reward.name))
        in map(scores_column, graph.roles)
    ]
    # A misspelled role leaves the right one without a reward: one message is enough.
    if not problems:
        problems = [
            Problem(
                ("spec", "rewards"),
                "a role that nothing scores",
                got=f"no reward of {role}",
                allowed=f"at least one for each of {allowed}",
                do=f"add one with role: {role} and a name of its own",
            )
            for role in roles
            if role not in rewarded
        ]
    if problems:
        raise ManifestError(problems)


def check_step(graph: Graph) -> None:
    """Refuse a training step that trains nothing.

    Raises:
        InvalidAlgorithm: it trains nothing.
    """
    if not graph.calls_of_kind(CallKind.TRAIN):
        raise InvalidAlgorithm(
            f"a step that trains nothing: got the calls {', '.join(c.id for c in graph.calls)}, "
            "allowed with at least one train call; add flow.<role>.train(batch, loss)"
        )


def _check_without_text(job: RLHFJob, graph: Graph, policy: str) -> None:
    """Refuse settings that need a trained language model.

    Raises:
        InvalidAlgorithm: the manifest has one.
    """
    # Rewards that no role of the step uses would score the answers of an evaluation.
    requested = {
        "schedule.warmStart": job.spec.schedule.warm_start is not None,
        "schedule.earlyStop": job.spec.schedule.early_stop is not None,
        "data.evaluation": job.spec.data.evaluation is not None,
        "rewards": bool(job.spec.rewards) and not reward_roles(graph),
    }
    for field, is_requested in requested.items():
        if is_requested:
            raise InvalidAlgorithm(
                f"{field} needs a language model that is trained: got {policy}, which gives "
                f"numbers; remove {field}"
            )


def _check_use_of_rewards(job: RLHFJob, graphs: Sequence[Graph]) -> None:
    """Refuse rewards that score nothing.

    Raises:
        InvalidAlgorithm: the manifest has some.
    """
    if job.spec.rewards and not any(map(reward_roles, graphs)):
        raise InvalidAlgorithm(
            "rewards that score nothing: got "
            f"{', '.join(reward.name for reward in job.spec.rewards)} and an algorithm without a "
            "RewardSource, allowed to score evaluation answers; add data.evaluation, or remove "
            "rewards"
        )


def _roles_with(graphs: Mapping[GraphName, Graph], kind: CallKind) -> set[str]:
    return {role for graph in graphs.values() for role in graph.roles_with(kind)}
