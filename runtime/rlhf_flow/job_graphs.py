"""The graphs of a job: its algorithm's step, and those of warm start and evaluation."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api import RLHFJob
from rlhf_api.plan import CallKind, GraphName, RoleKind
from rlhf_flow.algorithm import Algorithm
from rlhf_flow.errors import InvalidAlgorithm
from rlhf_flow.fields import ANSWER_FIELDS, PROMPT_FIELDS
from rlhf_flow.graph import Graph
from rlhf_flow.registry import build_algorithm, build_evaluation, build_warm_start
from rlhf_flow.tracing import trace

ACTOR = "actor"
"""The role that every algorithm has: the policy that generates."""


def job_algorithms(job: RLHFJob) -> Mapping[GraphName, Algorithm]:
    """The algorithms that a job runs, in the order in which they first run.

    Raises:
        InvalidAlgorithm: a custom algorithm that cannot be imported or built.
    """
    candidates = {
        GraphName.WARM_START: build_warm_start(job),
        GraphName.EVALUATION: build_evaluation(job),
        GraphName.STEP: build_algorithm(job),
    }
    return {name: algorithm for name, algorithm in candidates.items() if algorithm is not None}


def trace_job(job: RLHFJob) -> Mapping[GraphName, Graph]:
    """The graphs of a job, checked.

    Raises:
        FlowError: a step that breaks a rule of the flow.
        InvalidAlgorithm: an algorithm that cannot be imported, built or traced, or that cannot
        work.
    """
    graphs = {
        name: trace(
            algorithm,
            samples_per_prompt=job.spec.rollout.samples_per_prompt,
            inputs=ANSWER_FIELDS if name is GraphName.WARM_START else PROMPT_FIELDS,
        )
        for name, algorithm in job_algorithms(job).items()
    }
    check_step(graphs[GraphName.STEP])
    check_rewards(job, graphs)
    return graphs


def check_rewards(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> None:
    """Refuse rewards of roles that are not there, and roles without rewards.

    Raises:
        InvalidAlgorithm: there is one.
    """
    roles = {
        role
        for graph in graphs.values()
        for role, kind in graph.roles.items()
        if kind is RoleKind.REWARD
    }
    given = {reward.role for reward in job.spec.rewards}
    if missing := sorted(roles - given):
        raise InvalidAlgorithm(
            f"a role that nothing scores: got rewards of {', '.join(sorted(given))}, allowed with "
            f"some of {missing[0]}; give one the role {missing[0]} in rewards[].role"
        )
    if roles and (unknown := sorted(given - roles)):
        raise InvalidAlgorithm(
            f"a reward of a role that the algorithm does not have: got rewards[].role "
            f"{unknown[0]}, allowed {', '.join(sorted(roles))}; correct it"
        )


def check_step(graph: Graph) -> None:
    """Refuse a training step that cannot work.

    Raises:
        InvalidAlgorithm: no actor, nothing trained, or another role than the actor generates.
    """
    if graph.roles.get(ACTOR) is not RoleKind.POLICY:
        raise InvalidAlgorithm(
            f"an algorithm without an actor: got the roles {', '.join(sorted(graph.roles))}, "
            f"allowed with {ACTOR} of kind {RoleKind.POLICY.value}; add it to roles()"
        )
    for call in graph.of_kind(CallKind.GENERATE):
        if call.role != ACTOR:
            raise InvalidAlgorithm(
                f"only the actor generates: got {call.id}, allowed {ACTOR}.generate; generate with "
                "it"
            )
    if not graph.of_kind(CallKind.TRAIN):
        raise InvalidAlgorithm(
            f"a step that trains nothing: got the calls {', '.join(c.id for c in graph.calls)}, "
            f"allowed with at least one train call; add flow.{ACTOR}.train(batch)"
        )
