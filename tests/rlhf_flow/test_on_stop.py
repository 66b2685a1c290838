"""Responses that are cut off: what a step does with them, and what is refused."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName
from rlhf_api.spec.stopping import OnStop, StopAction
from rlhf_flow import CrossEntropy
from rlhf_flow.document.graph_document import read_graph
from rlhf_flow.document.manifest_graph import build_manifest_graph, settings_digest
from rlhf_flow.errors import FlowError
from rlhf_flow.jobs.job_graphs import trace_algorithms, trace_job
from rlhf_flow.step.calls import ComputeOptions, TrainOptions
from rlhf_flow.step.losses import ClippedLoss, ValueLoss
from rlhf_flow.step.operations import BothValid, GroupAdvantages
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.tracing import trace

from .conftest import MakeJob
from .stepped import Stepped
from .test_reward_models import LEARNED

VERIFIER = {"entrypoint": "verifiers:exact"}
COSTS = [{"function": VERIFIER}, {"name": "harm", "role": "cost", "function": VERIFIER}]
ROLLOUT = {"samplesPerPrompt": 4, "maxPromptTokens": 32, "maxResponseTokens": 32}
GENERATING = ["GRPO", "DAPO", "RLOO", "OPO", "REINFORCEPlusPlus", "ReMax", "PPO", "SafeRLHF"]
SOURCE = """
from rlhf_flow import Algorithm, ClippedLoss, CrossEntropy, LanguageModel, RewardSource
from rlhf_flow.step.operations import GroupAdvantages

class Policy(Algorithm):
    def roles(self):
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow, prompts):
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"))

class Answers(Algorithm):
    def roles(self):
        return {"actor": LanguageModel}

    def step(self, flow, prompts):
        flow.actor.train(prompts, CrossEntropy())
"""


REASONS = {"EndToken": {}, "StopText": {"stop": ["\n"]}, "TokenLimit": {}, "ContextLimit": {}}
"""Settings that a treatment of a stop reason needs."""


def on_stop(action: str, reason: str = "TokenLimit") -> dict[str, Any]:
    return {"rollout": ROLLOUT | {"onStop": {reason: action}} | REASONS[reason]}


def graphs_of(job: MakeJob, kind: str, action: str, **sections: Any) -> dict[GraphName, Graph]:
    costs = {"rewards": COSTS} if kind == "SafeRLHF" else {}
    return dict(trace_job(job(algorithm={"type": kind}, **costs, **on_stop(action), **sections)))


def losses_of(graph: Graph) -> list[Any]:
    options = [call.options for call in graph.calls]
    return [each.loss for each in options if isinstance(each, TrainOptions)]


@pytest.mark.parametrize("kind", [*GENERATING, "OnlineDPO"])
def test_by_default_a_step_is_as_without_the_setting(job: MakeJob, kind: str) -> None:
    costs = {"rewards": COSTS} if kind == "SafeRLHF" else {}
    without = trace_job(job(algorithm={"type": kind}, **costs))
    assert graphs_of(job, kind, "Train") == dict(without)


@pytest.mark.parametrize("kind", GENERATING)
def test_masked_responses_count_everywhere_but_in_losses(job: MakeJob, kind: str) -> None:
    before = graphs_of(job, kind, "Train")[GraphName.STEP]
    graph = graphs_of(job, kind, "Mask")[GraphName.STEP]
    for call, other in zip(graph.calls, before.calls, strict=True):
        if call.method == "train":
            assert set(call.reads) == {*other.reads, "unmasked"}
        elif call.method == "generate":
            assert set(call.writes) == {*other.writes, "unmasked"}
        else:
            assert call == other
    for loss in losses_of(graph):
        assert isinstance(loss, ClippedLoss | ValueLoss)
        assert loss.counted == (loss.valid, "unmasked")


@pytest.mark.parametrize("action", ["Mask", "LeaveOut"])
def test_the_graph_is_the_same_for_all_stop_reasons(job: MakeJob, action: str) -> None:
    expected = graphs_of(job, "GRPO", action)
    for reason in REASONS:
        assert dict(trace_job(job(algorithm={"type": "GRPO"}, **on_stop(action, reason)))) == (
            expected
        )


def test_one_reason_may_be_masked_and_another_left_out(job: MakeJob) -> None:
    rollout = ROLLOUT | {"onStop": {"TokenLimit": "Mask", "ContextLimit": "LeaveOut"}}
    graph = trace_job(job(algorithm={"type": "GRPO"}, rollout=rollout))[GraphName.STEP]
    (loss,) = losses_of(graph)
    assert loss.counted == ("reward_valid", "unmasked")
    score = graph.call("reward.score")
    assert "retained" in score.reads
    assert graph.call("reward.valid").options == ComputeOptions(
        (BothValid("reward_valid", "retained", "reward_valid"),)
    )


@pytest.mark.parametrize("kind", [*GENERATING, "OnlineDPO"])
def test_no_score_counts_of_a_response_that_is_left_out(job: MakeJob, kind: str) -> None:
    graph = graphs_of(job, kind, "LeaveOut")[GraphName.STEP]
    assert losses_of(graph) == losses_of(graphs_of(job, kind, "Train")[GraphName.STEP])
    scored = [call for call in graph.calls if call.method == "score"]
    assert scored
    for call in scored:
        region, _, site = call.id.rpartition("/")
        restricted = graph.call(f"{region}/" * bool(region) + site.replace(".score", ".valid"))
        valid = f"{call.role}_valid"
        assert isinstance(restricted.options, ComputeOptions)
        assert restricted.options.operations == (BothValid(valid, "retained", valid),)
        # Every later reader has the restricted column.
        readers = [e.target for e in graph.data_edges if e.source == call.id and valid in e.columns]
        assert readers == [restricted.id]


def test_a_models_scores_are_left_out_too(job: MakeJob) -> None:
    graph = graphs_of(job, "GRPO", "LeaveOut", rewards=[LEARNED])[GraphName.STEP]
    sources = {edge.source for edge in graph.data_edges if edge.target == "reward.valid"}
    assert sources == {"reward.sum", "actor.generate"}


@pytest.mark.parametrize("action", ["Mask", "LeaveOut"])
def test_an_evaluation_measures_all_responses(job: MakeJob, action: str) -> None:
    data = {"train": {"builtin": "SortDigits"}, "evaluation": {"builtin": "SortDigits"}}
    graphs = graphs_of(job, "GRPO", action, data=data)
    before = graphs_of(job, "GRPO", "Train", data=data)
    assert graphs[GraphName.EVALUATION] == before[GraphName.EVALUATION]


def test_a_loss_that_cannot_mask_generated_responses_is_refused() -> None:
    algorithm = Stepped(lambda flow, p: flow.actor.train(flow.actor.generate(p), CrossEntropy()))
    for action in (StopAction.MASK, StopAction.LEAVE_OUT):
        message = rf"got CrossEntropy\(.*{action.value} in .*, allowed ClippedLoss.*; write Train"
        with pytest.raises(FlowError, match=message):
            trace(algorithm, on_stop=OnStop(TokenLimit=action))
    trace(algorithm)


def test_an_auxiliary_loss_on_generated_responses_is_refused_too() -> None:
    def step(flow: Any, prompts: Any) -> None:
        batch = flow.actor.generate(prompts)
        batch |= flow.reward.score(batch)
        batch |= flow.compute(batch, GroupAdvantages("reward_scores", "reward_valid"))
        flow.actor.train(batch, ClippedLoss("reward_valid"), (batch, CrossEntropy(weight=0.1)))

    for action in (StopAction.MASK, StopAction.LEAVE_OUT):
        with pytest.raises(FlowError, match=f"got CrossEntropy.*{action.value}"):
            trace(Stepped(step), on_stop=OnStop(TokenLimit=action))


def test_a_condition_of_the_algorithm_is_not_replaced() -> None:
    loss = ClippedLoss("reward_valid", finished="reward_valid")
    algorithm = Stepped(lambda flow, p: flow.actor.train(flow.actor.generate(p), loss))
    with pytest.raises(FlowError, match=r"got finished='reward_valid' and Mask.*, allowed None"):
        trace(algorithm, on_stop=OnStop(TokenLimit=StopAction.MASK))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    (tmp_path / "stopping.py").write_text(SOURCE)
    yield
    sys.modules.pop("stopping", None)


def custom(job: MakeJob, name: str, action: str, **sections: Any) -> Any:
    algorithm = {"type": "Custom", "custom": {"entrypoint": f"stopping:{name}"}}
    return job(algorithm=algorithm, **on_stop(action), **sections)


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("action", ["Mask", "LeaveOut"])
def test_a_custom_algorithm_that_generates_nothing_is_refused(job: MakeJob, action: str) -> None:
    data = {"train": {"builtin": "SortDigits"}}
    with pytest.raises(ManifestError, match=f"onStop.TokenLimit.*got {action}, allowed Train, or"):
        trace_job(custom(job, "Answers", action, rewards=[], data=data))


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize("action", ["Mask", "LeaveOut"])
def test_a_manifest_holds_the_graph_of_a_custom_algorithm(job: MakeJob, action: str) -> None:
    made = custom(job, "Policy", action)
    traced = trace_algorithms(made)[GraphName.STEP]
    stored = build_manifest_graph(made, traced.algorithm, traced.graph)
    assert read_graph(stored) == traced.graph
    assert settings_digest(made) != settings_digest(custom(job, "Policy", "Train"))
