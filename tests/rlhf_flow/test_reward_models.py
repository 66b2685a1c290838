"""Reward models in a step: their calls, their fields, where they are, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, ModelHead
from rlhf_flow import (
    Algorithm,
    BatchValue,
    BradleyTerry,
    Flow,
    LanguageModel,
    RewardSource,
    Roles,
    ScalarModel,
)
from rlhf_flow.errors import FlowError, UnknownRole
from rlhf_flow.jobs.job_graphs import check_rewards, job_roles, trace_job
from rlhf_flow.step.calls import ComputeOptions
from rlhf_flow.step.operations import WeightedSum
from rlhf_flow.step.reward_terms import ModelTerm, RewardTerms
from rlhf_flow.trace.graph import Graph
from rlhf_flow.trace.tracing import trace
from rlhf_planner.plan import make_plan
from rlhf_planner.problem.devices import GIB, local_inventory

from .conftest import MakeJob

SHAPE = {
    "numLayers": 2,
    "hiddenSize": 64,
    "intermediateSize": 128,
    "numAttentionHeads": 4,
    "numKeyValueHeads": 2,
    "headDim": 16,
    "vocabSize": 64,
}
LEARNED: dict[str, Any] = {
    "name": "learned",
    "weight": 2.0,
    "model": {"path": "/rm", "shape": SHAPE},
}
EXACT: dict[str, Any] = {"name": "exact", "function": {"entrypoint": "verifiers:exact"}}


def step_of(made: Any) -> Graph:
    return trace_job(made)[GraphName.STEP]


def edges_into(graph: Graph, target: str) -> dict[str, tuple[str, ...]]:
    return {edge.source: edge.columns for edge in graph.data_edges if edge.target == target}


def test_a_model_alone_needs_no_host(job: MakeJob) -> None:
    made = job(rewards=[LEARNED])
    graph = step_of(made)
    assert not graph.calls_of_kind(CallKind.SCORE)
    scores, total = graph.call("learned_model.scores"), graph.call("reward.sum")
    assert (scores.kind, scores.role) == (CallKind.INFER, "learned_model")
    assert scores.reads == ("prompt_tokens", "response_tokens")
    assert scores.writes == total.reads == ("learned_model_scores",)
    assert total.writes == ("reward_scores", "reward_valid")
    assert isinstance(total.options, ComputeOptions)
    assert total.options.operations == (
        WeightedSum({"learned_model_scores": 2.0}, scores="reward_scores", valid="reward_valid"),
    )
    assert edges_into(graph, "compute")["reward.sum"] == ("reward_scores", "reward_valid")
    role = job_roles(trace_job(made))["learned_model"]
    assert (role.head, role.is_trained, role.generates) == (ModelHead.SCALAR, False, False)
    model = made.spec.model_for("learned_model")
    assert model.source.path == "/rm" and made.spec.origin_role("learned_model") == "learned_model"


def test_a_mixture_has_a_column_for_each_term(job: MakeJob) -> None:
    graph = step_of(job(rewards=[LEARNED, EXACT]))
    assert graph.call("reward.score").writes == (
        "reward_exact_scores",
        "reward_scores",
        "reward_valid",
    )
    total = graph.call("reward.sum")
    assert isinstance(total.options, ComputeOptions)
    (operation,) = total.options.operations
    assert operation == WeightedSum(
        {"reward_scores": 1.0, "reward_learned_scores": 2.0},
        scores="reward_scores",
        valid="reward_valid",
        counted="reward_valid",
    )
    assert edges_into(graph, "reward.sum") == {
        "learned_model.scores": ("learned_model_scores",),
        "reward.score": ("reward_scores", "reward_valid"),
    }


def test_verifiers_alone_are_one_call(job: MakeJob) -> None:
    other = {"name": "other", "http": {"url": "http://rewards/score"}}
    graph = step_of(job(rewards=[EXACT, other]))
    assert [call.id for call in graph.calls if call.role == "reward"] == ["reward.score"]
    assert graph.call("reward.score").writes == (
        *("reward_exact_scores", "reward_other_scores", "reward_scores", "reward_valid"),
    )
    alone = step_of(job(rewards=[EXACT]))
    assert alone.call("reward.score").writes == ("reward_scores", "reward_valid")


def test_one_with_its_own_tokenizer_reads_texts(job: MakeJob) -> None:
    own = {"name": "own", "model": {"path": "/rm", "tokenizer": "Own"}}
    call = step_of(job(rewards=[own])).call("own_model.scores_of_texts")
    assert call.reads == ("finished", "record", "response_text")
    assert call.writes == ("own_model_scores",)


def test_reward_and_cost_have_models_of_their_own(job: MakeJob) -> None:
    cost = {"name": "harm", "role": "cost", "model": {"path": "/cm"}}
    graph = step_of(job(algorithm={"type": "SafeRLHF"}, rewards=[LEARNED, cost]))
    assert edges_into(graph, "reward.sum") == {"learned_model.scores": ("learned_model_scores",)}
    assert edges_into(graph, "cost.sum") == {"harm_model.scores": ("harm_model_scores",)}


def test_greedy_answers_are_scored_by_the_model_too(job: MakeJob) -> None:
    """Calls are numbered by site, so that metrics of both are told apart."""
    ids = [call.id for call in step_of(job(algorithm={"type": "ReMax"}, rewards=[LEARNED])).calls]
    for site in ("learned_model.scores", "reward.sum"):
        assert {site, f"{site}#2"} <= set(ids)


def test_held_out_answers_are_scored_by_it(job: MakeJob) -> None:
    made = job(rewards=[LEARNED], data={"train": {"builtin": "SortDigits"}})
    graph = trace_job(made)[GraphName.EVALUATION]
    assert [call.id for call in graph.calls][1:] == ["learned_model.scores", "reward.sum"]


def test_it_is_planned_as_a_role_that_is_only_read(job: MakeJob) -> None:
    made = job(
        algorithm={"type": "PPO"}, placement={"type": "Split"}, rewards=[{**LEARNED, "weight": 1}]
    )
    _, plan = make_plan(made, (local_inventory(2, 8 * GIB),))
    actor, critic, learned = (plan.role(name) for name in ("actor", "critic", "learned_model"))
    assert actor and critic and learned and learned.mesh == critic.mesh != actor.mesh
    assert (learned.head, learned.is_trained, learned.is_saved) == (ModelHead.SCALAR, False, False)
    uses = {(item.role, item.what.value) for memory in plan.memory for item in memory.items}
    assert ("learned_model", "Weights") in uses and ("learned_model", "Optimizer") not in uses


def test_a_critic_may_start_from_it(job: MakeJob) -> None:
    actor = {"source": {"builtin": "TinyLlama"}}
    models = {"actor": actor, "critic": {"source": {"sameAs": "learned_model"}}}
    made = job(algorithm={"type": "PPO"}, models=models, rewards=[LEARNED])
    assert made.spec.origin_role("critic") == "learned_model"
    assert made.spec.model_for("learned_model").shape == made.spec.rewards[0].model.shape


class Judged(Algorithm):
    """A role of the step's own that scores, and one with the name of a reward's model."""

    def __init__(self, role: str = "judge") -> None:
        self._role = role

    def roles(self) -> Roles:
        return {"actor": LanguageModel, self._role: ScalarModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        batch = flow.actor.generate(prompts)
        batch |= getattr(flow, self._role).scores(batch)
        batch |= flow.reward.score(batch)
        terms = {f"{self._role}_scores": 0.5, "reward_scores": 1}
        total = WeightedSum(terms, scores="total_scores", valid="total_valid")
        batch |= flow.compute(batch, total)


MODEL = RewardTerms(models=(ModelTerm("learned", "learned_model", 1.0, False),))


def test_a_step_may_score_by_a_role_of_its_own() -> None:
    graph = trace(Judged())
    assert graph.call("judge.scores").writes == ("judge_scores",)
    assert edges_into(graph, "compute") == {
        "judge.scores": ("judge_scores",),
        "reward.score": ("reward_scores",),
    }


def test_a_reward_model_with_the_name_of_a_role_is_refused() -> None:
    with pytest.raises(FlowError, match="one name: got learned_model.* rename the reward learned "):
        trace(Judged("learned_model"), rewards={"reward": MODEL})


def test_rewards_of_roles_that_the_algorithm_lacks_add_no_model() -> None:
    assert set(trace(Judged(), rewards={"cost": MODEL}).roles) == {"actor", "judge", "reward"}


class Meddling(Algorithm):
    """A step that would train a reward's model."""

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource}

    def step(self, flow: Flow, prompts: BatchValue) -> None:
        flow.learned_model.train(prompts, BradleyTerry())


def test_a_rewards_model_is_no_role_of_the_step() -> None:
    with pytest.raises(UnknownRole, match="flow.learned_model"):
        trace(Meddling(), rewards={"reward": MODEL})


@pytest.mark.parametrize(
    ("terms", "says"),
    [
        ({}, r"terms: got terms=\{\}, allowed columns of scores, at least one"),
        ({"9": 1.0}, "terms"),
        ({"a": float("nan")}, r"terms\['a'\]: got terms\['a'\]=nan, allowed a finite number"),
        (["a"], "terms"),
    ],
)
def test_a_sum_of_nothing_is_refused(terms: Any, says: str) -> None:
    with pytest.raises(FlowError, match=says):
        WeightedSum(terms, scores="total", valid="counts")


def test_a_sum_of_other_fields_than_scores_is_refused() -> None:
    class Wrong(Judged):
        def step(self, flow: Flow, prompts: BatchValue) -> None:
            batch = flow.actor.generate(prompts)
            flow.compute(batch, WeightedSum({"finished": 1}, scores="a", valid="b"))

    with pytest.raises(FlowError, match="finished.*allowed a score per row"):
        trace(Wrong())


class Nested(Judged):
    """Two roles that score, of which one is named as a reward of the other would be."""

    def __init__(self) -> None:
        super().__init__()

    def roles(self) -> Roles:
        return {"actor": LanguageModel, "reward": RewardSource, "reward_cost": RewardSource}


def test_a_column_that_is_another_roles_score_is_refused(job: MakeJob) -> None:
    rewards = [
        EXACT | {"name": "cost"},
        EXACT | {"name": "other"},
        EXACT | {"name": "third", "role": "reward_cost"},
    ]
    with pytest.raises(ManifestError, match=r"rewards\[0\].name: a reward whose column is another"):
        check_rewards(job(rewards=rewards), replace(trace(Judged()), roles=Nested().roles()))
    check_rewards(job(rewards=rewards[1:]), replace(trace(Judged()), roles=Nested().roles()))
