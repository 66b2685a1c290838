"""Weights that a step copies from role to role: order, refusals, what is told."""

from __future__ import annotations

import pickle
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.spec.policy_loss import KlEstimator
from rlhf_api.spec.resources import Device
from rlhf_flow import (
    Algorithm,
    BatchValue,
    ClippedLoss,
    CrossEntropy,
    Dpo,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
)
from rlhf_flow.errors import FlowError
from rlhf_flow.jobs.job_graphs import JobRole, job_roles, trace_job
from rlhf_flow.jobs.lint import lint_job
from rlhf_flow.step.calls import CopyOptions, ModelCall
from rlhf_flow.step.operations import BestAgainstWorst, Custom, GroupAdvantages, Scope
from rlhf_flow.trace.graph import version_edges
from rlhf_flow.trace.picture import draw_mermaid, draw_text
from rlhf_flow.trace.tracing import trace

from .stepped import Step


class Models(Algorithm):
    """Two language models, two critics, and a step."""

    def __init__(self, step: Step) -> None:
        self._step = step

    def roles(self) -> Roles:
        models = {"actor": LanguageModel, "reference": LanguageModel}
        critics = {"critic": ScalarModel, "target": ScalarModel}
        return {**models, **critics, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        self._step(flow, prompts)


def online_dpo(flow: Flow, prompts: BatchValue) -> None:
    """Warmer samples than those of the rollout: DPO does not compare with how they were sampled."""
    batch = flow.actor.generate(prompts, temperature=1.3)
    batch |= flow.reward.score(batch)
    batch |= flow.compute(batch, BestAgainstWorst("reward_scores", "reward_valid"))
    batch |= flow.reference.log_probs(batch)
    flow.actor.train(batch, Dpo("reference_log_probs"))
    flow.every(3, lambda: flow.reference.copy_weights_from(flow.actor))


def test_a_copy_comes_after_the_training_and_before_later_readers() -> None:
    graph = trace(Models(online_dpo))
    copy = graph.calls[-1]
    assert copy.id == "every-3/reference.copy_weights_from"
    assert (copy.role, copy.kind, copy.options) == (
        "reference",
        CallKind.COPY,
        CopyOptions("actor"),
    )
    assert not copy.reads and not copy.writes
    assert pickle.loads(pickle.dumps(copy)) == copy
    assert graph.predecessors(copy.id) == {"actor.train", "reference.log_probs"}
    crossing = {(e.source, e.target) for e in graph.version_edges if e.iterations}
    assert (copy.id, "reference.log_probs") in crossing, "the next step reads what was copied"
    assert (copy.id, "actor.train") in crossing, "it is copied before it changes again"
    assert graph.expected_count(copy.id) == pytest.approx(1 / 3)
    drawn = draw_text(graph)
    assert f"{copy.id}  takes actor's weights  x 0.333" in drawn
    assert "gives reference's weights to the next step's reference.log_probs" in drawn
    assert '-.->|"reference, next step"|' in draw_mermaid(graph)


def call(number: int, what: str) -> ModelCall:
    kind = {"read": CallKind.INFER, "train": CallKind.TRAIN, "copy": CallKind.COPY}[what[:-2]]
    options = CopyOptions("a") if kind is CallKind.COPY else None
    return ModelCall(f"c{number}", what[-1], "any", kind, (), (), options=options)


CHANGING = {"a": {"train a"}, "b": {"copy b"}}
USING = {"a": {"read a", "train a", "copy b"}, "b": {"read b", "copy b"}}


@given(st.lists(st.sampled_from(sorted(USING["a"] | USING["b"])), max_size=7))
def test_calls_that_share_weights_of_which_one_changes_them_are_ordered(whats: list[str]) -> None:
    """Oracle: over two steps, two calls are ordered by a role's edges exactly where one of them, or
    one between, changes what both work with. `copy b` takes a's weights."""
    edges = version_edges([call(*each) for each in enumerate(whats)], ("a", "b"))
    nodes = [(step, number) for step in (0, 1) for number in range(len(whats))]
    for role in ("a", "b"):
        follows = {node: set[tuple[int, int]]() for node in nodes}
        for edge in (each for each in edges if each.role == role):
            for step in range(2 - edge.iterations):
                source, target = int(edge.source[1:]), int(edge.target[1:])
                follows[step, source].add((step + edge.iterations, target))

        def reaches(start: Any, goal: Any, follows: Any = follows) -> bool:
            return goal in follows[start] or any(reaches(mid, goal) for mid in follows[start])

        users = [node for node in nodes if whats[node[1]] in USING[role]]
        for first, begin in enumerate(users):
            for end in users[first + 1 :]:
                between = users[first : users.index(end) + 1]
                changed = any(whats[number] in CHANGING[role] for _, number in between)
                assert reaches(begin, end) == changed


def in_rounds(flow: Flow, _: Any) -> None:
    def body(fresh: Any) -> Any:
        flow.reference.copy_weights_from(flow.actor)
        return flow.actor.generate(fresh)

    until = Custom(f"{__name__}:call", ["prompt_id"], ["enough"], scope=Scope.BATCH)
    flow.repeat(body, until=until, max_rounds=2, expected_rounds=1)


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (
            lambda flow, _: flow.reference.copy_weights_from(flow.critic),
            "got <ScalarModel critic>, allowed a LanguageModel of another name",
        ),
        (lambda flow, _: flow.critic.copy_weights_from(flow.critic), "got <ScalarModel critic>"),
        (lambda flow, _: flow.reference.copy_weights_from("actor"), "got 'actor'"),
        (lambda flow, batch: flow.reference.copy_weights_from(batch), "got <batch of"),
        (lambda flow, _: flow.reward.copy_weights_from(flow.actor), "reward has no primitive copy"),
        (in_rounds, "repeat/reference.copy_weights_from changes weights in rounds"),
    ],
    ids=["a critic", "itself", "a name", "a batch", "a reward", "in rounds"],
)
def test_only_another_role_of_the_same_kind_is_copied(step: Step, message: str) -> None:
    with pytest.raises(FlowError, match=message):
        trace(Models(step))


def test_a_role_whose_weights_are_only_copied_is_used() -> None:
    def step(flow: Flow, prompts: Any) -> None:
        flow.actor.copy_weights_from(flow.reference)
        flow.target.copy_weights_from(flow.critic)
        flow.actor.train(flow.actor.generate(prompts), CrossEntropy())

    calls = trace(Models(step)).calls
    assert all(any(each.uses(role) for each in calls) for role in ("reference", "critic", "target"))


class Penalized(Algorithm):
    """GRPO with a penalty against a reference that is copied now and then, or an actor that is."""

    def __init__(self, every: int, into: str = "reference") -> None:
        self.every = every
        self.into = into

    def roles(self) -> Roles:
        models = {"actor": LanguageModel, "reference": LanguageModel}
        return {**models, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        if self.into == "actor":
            flow.actor.copy_weights_from(flow.reference)
        batch |= flow.actor.log_probs(batch) | flow.reference.log_probs(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        loss = ClippedLoss(
            "reward_valid",
            kl_coefficient=0.1,
            kl_estimator=KlEstimator.K3,
            old_log_probs="actor_log_probs",
            reference_log_probs="reference_log_probs",
        )
        flow.actor.train(batch, loss)
        if self.into == "reference":
            flow.every(self.every, lambda: flow.reference.copy_weights_from(flow.actor))


def penalized(job: Any, **parameters: Any) -> Any:
    custom = {"entrypoint": f"{__name__}:Penalized", "parameters": parameters}
    return job(algorithm={"type": "Custom", "custom": custom})


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"every": 2}, None),
        (
            {"every": 1},
            "KL against its own initial weights: .*every-1/reference.copy_weights_from mak",
        ),
        ({"every": 2, "into": "actor"}, "after actor.copy_weights_from has changed actor"),
    ],
    ids=["now and then", "every step", "before log-probabilities"],
)
def test_a_reference_that_stays_behind_is_not_odd(
    job: Any, parameters: dict[str, Any], told: str | None
) -> None:
    made = penalized(job, **parameters)
    found = lint_job(made, trace_job(made), Device.CPU)
    assert len(found) == (told is not None), found
    assert told is None or re.search(told, found[0])


def test_a_role_that_is_copied_into_is_not_trained_but_is_known(job: Any) -> None:
    roles = job_roles(trace_job(penalized(job, every=2)))
    assert roles["reference"] == JobRole(roles["actor"].head, False, False, takes_weights=True)
    assert not roles["actor"].takes_weights
