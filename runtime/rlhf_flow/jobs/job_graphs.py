"""The algorithms of a job and their graphs: its step, and those of warm start and evaluation.

A role is what the graphs say: it is trained or generates because a call does so with it.
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
from rlhf_flow.document.manifest_graph import (
    check_up_to_date,
    data_fields,
    graph_of_manifest,
    pretraining_rows,
)
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.jobs.registry import build_algorithm, build_evaluation, build_warm_start
from rlhf_flow.step.algorithm import Algorithm
from rlhf_flow.step.checks import suggest
from rlhf_flow.step.columns import ANSWER_FIELDS, PROMPT_FIELDS, scores_of, term_scores_of
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_flow.step.roles import RewardSource
from rlhf_flow.trace.graph import PROMPTS, Graph, RowCount
from rlhf_flow.trace.source_location import told_at
from rlhf_flow.trace.tracing import trace


@dataclass(frozen=True)
class JobRole:
    """What a role is, and what the graphs of a job do with it."""

    head: ModelHead | None
    """What its model ends in. None: it has no model."""
    is_trained: bool
    generates: bool
    takes_weights: bool = False
    """Whether it takes over those of another role."""


@dataclass(frozen=True)
class TracedAlgorithm:
    """An algorithm of a job, and its graph."""

    algorithm: Algorithm
    graph: Graph


def trace_algorithms(
    job: RLHFJob, device: Device = Device.CPU
) -> Mapping[GraphName, TracedAlgorithm]:
    """What a job runs, in the order in which it first runs, checked.

    Args:
        job: the manifest.
        device: what it computes on.

    Raises:
        FlowError: a step that breaks a rule of the flow.
        InvalidAlgorithm: an algorithm that cannot be imported, built or traced, or that cannot
            work.
        ManifestOutdated: the manifest gives another graph of it.
        ManifestError: rewards that do not fit its roles.
    """
    step = build_algorithm(job, device)
    graph = _traced(job, step, data_fields(job), pretraining_rows(job))
    with told_at(type(step).step):
        check_step(graph)
    with told_at(type(step).roles):
        check_models(job, graph)
    _check_job(job, graph)
    check_up_to_date(job, step, graph)
    steps = {GraphName.STEP: TracedAlgorithm(step, graph)}
    graphs = _beside(job, graph) | steps
    _check_use_of_rewards(job, [each.graph for each in graphs.values()])
    return graphs


def graphs_without_code(job: RLHFJob, device: Device = Device.CPU) -> Mapping[GraphName, Graph]:
    """The graphs of a job, checked, without its own code: of a custom algorithm's step the one that
    the manifest gives. Warm start and evaluation follow from it.

    Args:
        job: the manifest; that of a custom algorithm has a graph.
        device: what it computes on.

    Raises:
        FlowError: a graph of a step that cannot work.
        InvalidGraph: the manifest's graph cannot be one.
        ManifestError: rewards that do not fit its roles.
    """
    if job.spec.algorithm.type is not AlgorithmType.CUSTOM:
        return trace_job(job, device)
    graph = graph_of_manifest(job)
    check_step(graph)
    check_models(job, graph)
    _check_job(job, graph)
    beside = {name: each.graph for name, each in _beside(job, graph).items()}
    graphs = beside | {GraphName.STEP: graph}
    _check_use_of_rewards(job, list(graphs.values()))
    return graphs


def _traced(
    job: RLHFJob,
    algorithm: Algorithm,
    inputs: frozenset[str],
    pretraining: RowCount | None = None,
) -> Graph:
    return trace(
        algorithm,
        samples_per_prompt=job.spec.rollout.samples_per_prompt,
        inputs=inputs,
        pretraining=pretraining,
        rewards=reward_terms(job.spec.rewards),
    )


def _check_job(job: RLHFJob, graph: Graph) -> None:
    """What the rest of a manifest has to say for a step of this graph."""
    check_pairs(job, graph)
    check_pretraining(job, graph)
    check_rewards(job, graph)
    policy = policy_of(graph)
    if graph.roles[policy].head is not ModelHead.LM:
        _check_without_text(job, graph, policy)


def _beside(job: RLHFJob, graph: Graph) -> dict[GraphName, TracedAlgorithm]:
    """Warm start and evaluation, where a job has them."""
    policy = policy_of(graph)
    if graph.roles[policy].head is not ModelHead.LM:
        return {}
    rewards = rewards_of(graph) or tuple(dict.fromkeys(each.role for each in job.spec.rewards))
    candidates = {
        GraphName.WARM_START: (build_warm_start(job, policy), ANSWER_FIELDS),
        GraphName.EVALUATION: (build_evaluation(job, policy, rewards), PROMPT_FIELDS),
    }
    return {
        name: TracedAlgorithm(each, _traced(job, each, inputs))
        for name, (each, inputs) in candidates.items()
        if each is not None
    }


def trace_job(job: RLHFJob, device: Device = Device.CPU) -> Mapping[GraphName, Graph]:
    """The graphs of a job, checked.

    Args:
        job: the manifest.
        device: what it computes on.

    Raises:
        FlowError: a step that breaks a rule of the flow.
        InvalidAlgorithm: an algorithm that cannot be imported, built or traced, or that cannot
            work.
        ManifestOutdated: the manifest gives another graph of it.
        ManifestError: rewards that do not fit its roles.
    """
    return {name: each.graph for name, each in trace_algorithms(job, device).items()}


def job_roles(graphs: Mapping[GraphName, Graph]) -> dict[str, JobRole]:
    """Every role of all graphs, the step's first."""
    named = {GraphName.STEP: graphs[GraphName.STEP], **graphs}
    kinds = {role: kind for graph in reversed(named.values()) for role, kind in graph.roles.items()}
    ordered = dict.fromkeys(role for graph in named.values() for role in graph.roles)
    trained = _roles_of(graphs, CallKind.TRAIN)
    generating = _roles_of(graphs, CallKind.GENERATE)
    copied_into = _roles_of(graphs, CallKind.COPY)
    return {
        role: JobRole(kinds[role].head, role in trained, role in generating, role in copied_into)
        for role in ordered
    }


def policy_of(graph: Graph) -> str:
    """The role whose model a job leaves, that a warm start trains and that answers held-out
    prompts: of the trained roles the first that generates, else the first language model, else the
    first.

    Args:
        graph: of a step, which trains something.
    """
    trained = graph.roles_of(CallKind.TRAIN)
    generating = [role for role in trained if role in graph.roles_of(CallKind.GENERATE)]
    with_text = [role for role in trained if graph.roles[role].head is ModelHead.LM]
    return (generating or with_text or trained)[0]


def rewards_of(graph: Graph) -> tuple[str, ...]:
    """The roles that score, in the order in which the algorithm names them."""
    return tuple(role for role, kind in graph.roles.items() if issubclass(kind, RewardSource))


def check_models(job: RLHFJob, graph: Graph) -> None:
    """Refuse a role whose model nothing gives.

    Raises:
        InvalidAlgorithm: there is one.
    """
    given = job.spec.models
    for role, kind in graph.roles.items():
        if kind.head is None or job.spec.has_model_for(role):
            continue
        near = get_close_matches(role, set(given) - set(graph.roles), n=1)
        meant = f", or rename models.{near[0]} (did you mean {role}?)" if near else ""
        others = ", or models.actor, from whose weights roles start that are left out"
        raise InvalidAlgorithm(
            f"a role without a model: got {', '.join(f'models.{each}' for each in given)} and none "
            f"for {role}, allowed models.{role}{'' if role == 'actor' else others}; add "
            f"models.{role} with its source{meant}"
        )


def check_pairs(job: RLHFJob, graph: Graph) -> None:
    """Refuse to answer the prompts of pairs, which are there twice.

    Raises:
        InvalidAlgorithm: a call would.
    """
    if job.spec.data.train.preferences is None:
        return
    generating = {call.id for call in graph.of_kind(CallKind.GENERATE)}
    for edge in graph.data_edges:
        if edge.source == PROMPTS and edge.target in generating:
            text = (
                f"{edge.target} would answer every prompt twice: got the rows of "
                "data.train.preferences, two for each prompt, allowed rows of prompts; remove "
                "data.train.preferences, or the call"
            )
            raise InvalidAlgorithm(graph.told_at(edge.target, text))


def check_pretraining(job: RLHFJob, graph: Graph) -> None:
    """Refuse rows that a step has no use for.

    Raises:
        InvalidAlgorithm: data.pretraining of a step that does not read it.
    """
    if job.spec.data.pretraining is not None and not graph.inputs.pretraining:
        raise InvalidAlgorithm(
            f"data.pretraining that nothing reads: got {job.spec.algorithm.type.value} without a "
            "call of flow.pretraining(), allowed for steps that train on it, such as by "
            "flow.actor.train(batch, loss, (flow.pretraining(), CrossEntropy(weight=0.1))); "
            "remove it, or write such a step"
        )


def check_rewards(job: RLHFJob, graph: Graph) -> None:
    """Refuse rewards of roles that are not there, or are something else, and roles without rewards.

    Raises:
        ManifestError: there is one.
    """
    roles = rewards_of(graph)
    allowed = ", ".join(sorted(roles))
    given = [reward.role for reward in job.spec.rewards]
    problems = [
        Problem(
            ("spec", "rewards", index, "role"),
            f"a reward of a role that {'has a model' if role in graph.roles else 'is not there'}",
            got=role,
            allowed=allowed or "any other name",
            do=suggest(role, roles, "correct it"),
        )
        for index, role in enumerate(given)
        if role not in roles and (roles or role in graph.roles)
    ]
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
        if (column := term_scores_of(reward.role, reward.name)) in map(scores_of, graph.roles)
    ]
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
            if role not in given
        ]
    if problems:
        raise ManifestError(problems)


def check_step(graph: Graph) -> None:
    """Refuse a training step that cannot work.

    Raises:
        InvalidAlgorithm: nothing is trained.
    """
    if not graph.of_kind(CallKind.TRAIN):
        raise InvalidAlgorithm(
            f"a step that trains nothing: got the calls {', '.join(c.id for c in graph.calls)}, "
            "allowed with at least one train call; add flow.<role>.train(batch, loss)"
        )


def _check_without_text(job: RLHFJob, graph: Graph, policy: str) -> None:
    """Refuse what only a language model can be asked for, where none is trained.

    Held-out answers are what rewards score where the step has no role for them.

    Raises:
        InvalidAlgorithm: the manifest asks for it.
    """
    asked = {
        "schedule.warmStart": job.spec.schedule.warm_start is not None,
        "data.evaluation": job.spec.data.evaluation is not None,
        "rewards": bool(job.spec.rewards) and not rewards_of(graph),
    }
    for field, is_given in asked.items():
        if is_given:
            raise InvalidAlgorithm(
                f"{field} needs a language model that is trained: got {policy}, which gives "
                f"numbers; remove {field}"
            )


def _check_use_of_rewards(job: RLHFJob, graphs: Sequence[Graph]) -> None:
    """Refuse rewards that score nothing.

    Raises:
        InvalidAlgorithm: the manifest has some.
    """
    if job.spec.rewards and not any(map(rewards_of, graphs)):
        raise InvalidAlgorithm(
            f"rewards that score nothing: got {', '.join(each.name for each in job.spec.rewards)} "
            "beside an algorithm without a RewardSource, allowed to score held-out answers; add "
            "data.evaluation, or remove rewards"
        )


def _roles_of(graphs: Mapping[GraphName, Graph], kind: CallKind) -> set[str]:
    return {role for graph in graphs.values() for role in graph.roles_of(kind)}
