"""Truncated sampling: which calls write and read the kept tokens, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName
from rlhf_flow import CrossEntropy
from rlhf_flow.document.graph_document import read_graph
from rlhf_flow.document.manifest_graph import build_manifest_graph, settings_digest
from rlhf_flow.errors import FlowError
from rlhf_flow.jobs.job_graphs import trace_algorithms, trace_job
from rlhf_flow.step.calls import GenerateOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import KEPT_TOKENS
from rlhf_flow.step.losses import ClippedLoss
from rlhf_flow.step.operations import GroupAdvantages
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.tracing import trace

from .conftest import MakeJob
from .stepped import Stepped
from .test_on_stop import COSTS, GENERATING, ROLLOUT

TRUNCATED = {"rollout": ROLLOUT | {"topP": 0.9}}
SAMPLED_LOSSES = ("ClippedLoss", "Dpo")


def graph_of(job: MakeJob, kind: str, **sections: Any) -> Graph:
    costs = {"rewards": COSTS} if kind == "SafeRLHF" else {}
    step = trace_job(job(algorithm={"type": kind}, **costs, **sections))[GraphName.STEP]
    assert isinstance(step, Graph)
    return step


def reads_sampled_log_probs(call: ModelCall) -> bool:
    options = call.options
    is_loss = isinstance(options, TrainOptions) and type(options.loss).__name__ in SAMPLED_LOSSES
    return call.method == "log_probs" or is_loss


def is_sampling(call: ModelCall) -> bool:
    return isinstance(call.options, GenerateOptions) and not call.options.greedy


@pytest.mark.parametrize("kind", [*GENERATING, "OnlineDPO"])
def test_the_kept_tokens_go_where_sampled_log_probs_are_computed(job: MakeJob, kind: str) -> None:
    """And nothing else changes."""
    before = graph_of(job, kind, rollout=ROLLOUT)
    graph = graph_of(job, kind, **TRUNCATED)
    assert any(map(is_sampling, graph.calls)) and any(map(reads_sampled_log_probs, graph.calls))
    for call, other in zip(graph.calls, before.calls, strict=True):
        kept = {KEPT_TOKENS}
        assert set(call.writes) == {*other.writes, *(kept if is_sampling(call) else ())}
        expected = kept if reads_sampled_log_probs(call) else set()
        assert set(call.reads) == {*other.reads, *expected}, call.id
        assert call.options == other.options


@pytest.mark.parametrize("limits", [{}, {"topP": 1.0}, {"minP": 0.0}])
def test_limits_that_leave_nothing_out_change_nothing(
    job: MakeJob, limits: dict[str, float]
) -> None:
    assert graph_of(job, "GRPO", rollout=ROLLOUT | limits) == graph_of(job, "GRPO", rollout=ROLLOUT)


def test_an_evaluation_records_nothing(job: MakeJob) -> None:
    evaluation = {"builtin": "SortDigits", "temperature": 1.0, "topK": 5}
    data = {"train": {"builtin": "SortDigits"}, "evaluation": evaluation}
    graphs = trace_job(job(algorithm={"type": "GRPO"}, data=data, **TRUNCATED))
    (generate,) = (c for c in graphs[GraphName.EVALUATION].calls if c.method == "generate")
    assert KEPT_TOKENS not in generate.writes


def policy_step(flow: Any, prompts: Any) -> None:
    batch = flow.actor.generate(prompts)
    batch |= flow.reward.score(batch)
    batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
    flow.actor.train(batch, ClippedLoss("reward_valid"), (batch, CrossEntropy(weight=0.1)))


def test_a_cross_entropy_is_over_all_tokens() -> None:
    """As it has no temperature."""
    graph = trace(Stepped(policy_step), truncates_sampling=True)
    (train,) = (call for call in graph.calls if call.method == "train")
    assert KEPT_TOKENS in train.reads
    assert KEPT_TOKENS not in train.auxiliary_reads[0]


def test_responses_without_their_kept_tokens_are_refused() -> None:
    def step(flow: Any, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        flow.actor.log_probs(batch.select("prompt_tokens", "response_tokens"))

    trace(Stepped(step))
    with pytest.raises(FlowError, match=r"actor\.log_probs compares .* without kept_tokens"):
        trace(Stepped(step), truncates_sampling=True)


def test_greedy_responses_have_no_kept_tokens() -> None:
    def step(flow: Any, prompts: Any) -> None:
        flow.actor.log_probs(flow.actor.generate(prompts, samples=1, greedy=True))

    graph = trace(Stepped(step), truncates_sampling=True)
    assert not any(KEPT_TOKENS in (*call.reads, *call.writes) for call in graph.calls)


ANSWERS = """
from rlhf_flow import Algorithm, CrossEntropy, LanguageModel

class Answers(Algorithm):
    def roles(self):
        return {"actor": LanguageModel}

    def step(self, flow, prompts):
        flow.actor.train(prompts, CrossEntropy())
"""
POLICY = """
from rlhf_flow import Algorithm, ClippedLoss, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages

class Policy(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))
"""


@pytest.fixture
def custom(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, dict[str, Any]]:
    """Settings of custom algorithms, by class."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "truncated_steps.py").write_text(ANSWERS + POLICY)
    return {
        name: {"type": "Custom", "custom": {"entrypoint": f"truncated_steps:{name}"}}
        for name in ("Answers", "Policy")
    }


def test_a_custom_step_that_samples_nothing_refuses_it(
    job: MakeJob, custom: dict[str, dict[str, Any]]
) -> None:
    data = {"train": {"path": "/d", "answerField": "answer"}}
    rollout = ROLLOUT | {"topK": 3, "minP": 0.1}
    made = job(algorithm=custom["Answers"], data=data, rewards=[], rollout=rollout)
    with pytest.raises(ManifestError) as refused:
        trace_algorithms(made)
    fields = [problem.path for problem in refused.value.problems]
    assert fields == ["spec.rollout.topK", "spec.rollout.minP"]
    assert "samples nothing" in str(refused.value)


def test_a_manifests_graph_depends_on_whether_sampling_is_truncated(
    job: MakeJob, custom: dict[str, dict[str, Any]]
) -> None:
    plain, first, second = (
        job(algorithm=custom["Policy"], rollout=ROLLOUT | limits)
        for limits in ({}, {"topP": 0.9}, {"topP": 0.5})
    )
    traced = trace_algorithms(first)[GraphName.STEP]
    stored = build_manifest_graph(first, traced.algorithm, traced.graph)
    assert read_graph(stored).calls == traced.graph.calls
    assert settings_digest(first) == settings_digest(second) != settings_digest(plain)
