"""Every built-in algorithm: the calls of its step, and what they read."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.algorithm import SETTINGS, AlgorithmType
from rlhf_api.spec.policy_loss import PolicyLossSettings
from rlhf_flow.document.term_document import read_operation, write_term
from rlhf_flow.jobs.job_graphs import trace_algorithms, trace_job
from rlhf_flow.jobs.registry import ALGORITHMS
from rlhf_flow.step.calls import ComputeOptions, TrainOptions
from rlhf_flow.step.losses import ClippedLoss
from rlhf_flow.step.operations import AdaptiveKlCoefficient, PenalizedScores, TokenRewards
from rlhf_flow.trace.graph import Graph

MODEL = {"source": {"builtin": "TinyLlama"}}
VERIFIER = {"entrypoint": "verifiers:exact"}
COSTS = {
    "rewards": [{"function": VERIFIER}, {"name": "harm", "role": "cost", "function": VERIFIER}],
}
PAIRS: dict[str, Any] = {
    "data": {"train": {"builtin": "SortDigits", "preferences": {}}},
    "rewards": [],
}
SAMPLED = ["actor.generate", "reward.score"]
CALLS = {
    "PPO": [*SAMPLED, "critic.values", "compute", "critic.train", "actor.train"],
    "GRPO": [*SAMPLED, "compute", "actor.train"],
    "DAPO": [
        *("repeat/actor.generate", "repeat/reward.score", "repeat/compute"),
        *("repeat/until/compute", "compute", "actor.train"),
    ],
    "RLOO": [*SAMPLED, "compute", "actor.train"],
    "OPO": [*SAMPLED, "compute", "actor.train"],
    "REINFORCEPlusPlus": [*SAMPLED, "compute", "actor.train"],
    "ReMax": [*SAMPLED, "actor.generate#2", "reward.score#2", "compute", "actor.train"],
    "SafeRLHF": [
        *(*SAMPLED, "cost.score", "critic.values", "cost_critic.values", "compute"),
        *("critic.train", "cost_critic.train", "actor.train"),
    ],
    "DPO": ["reference.log_probs", "actor.train"],
    "OnlineDPO": [*SAMPLED, "compute", "reference.log_probs", "actor.train"],
    "SFT": ["actor.train"],
    "RewardModel": ["reward_model.train"],
}
"""Of the step, without a KL penalty and with one update in float32."""

MANIFESTS: dict[str, dict[str, Any]] = {
    "SafeRLHF": COSTS,
    "DPO": PAIRS,
    "SFT": {"data": {"train": {"builtin": "SortDigits"}}, "rewards": []},
    "RewardModel": {**PAIRS, "models": {"reward_model": MODEL}},
}
POLICY_GRADIENTS = [
    kind.value for kind, each in SETTINGS.items() if issubclass(each, PolicyLossSettings)
]


def step_of(job: Any, kind: str, settings: dict[str, Any] | None = None, **more: Any) -> Graph:
    algorithm: dict[str, Any] = {"type": kind}
    if settings:
        algorithm[AlgorithmType(kind).settings_field] = settings
    made = job(algorithm=algorithm, **(MANIFESTS.get(kind, {}) | more))
    return trace_job(made)[GraphName.STEP]


@pytest.mark.parametrize("kind", CALLS)
def test_calls_that_read_no_samples_are_known(job: Any, kind: str) -> None:
    graph, sampled = step_of(job, kind), kind not in {"DPO", "SFT", "RewardModel"}
    assert graph.calls_on_data == frozenset([] if sampled else CALLS[kind])


def policy_loss(graph: Graph) -> ClippedLoss:
    options = graph.call("actor.train").options
    assert isinstance(options, TrainOptions) and isinstance(options.loss, ClippedLoss)
    return options.loss


def test_every_type_has_a_builder_settings_and_calls_here() -> None:
    assert set(ALGORITHMS) == set(AlgorithmType)
    assert set(SETTINGS) == set(AlgorithmType) - {AlgorithmType.CUSTOM}
    assert set(CALLS) == {kind.value for kind in SETTINGS}


@pytest.mark.parametrize("kind", CALLS)
def test_a_step_has_the_calls_of_its_figure(job: Any, kind: str) -> None:
    assert [call.id for call in step_of(job, kind).calls] == CALLS[kind]


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
@pytest.mark.parametrize("placement", ["Reward", "Loss"])
def test_a_penalty_acts_once_where_it_is_placed(job: Any, kind: str, placement: str) -> None:
    graph = step_of(job, kind, {"klCoefficient": 0.1, "klPlacement": placement})
    assert "reference.log_probs" in [call.id for call in graph.calls]
    assert (policy_loss(graph).kl_coefficient > 0) is (placement == "Loss")
    (own,) = [call for call in graph.calls if call.id == "compute"]
    assert ("reference_log_probs" in own.reads) is (placement == "Reward")


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_a_penalty_may_follow_the_kl(job: Any, kind: str) -> None:
    settings = {"klCoefficient": 0.1, "klPlacement": "Reward", "adaptiveKl": {"target": 6.0}}
    graph = step_of(job, kind, settings)
    (own,) = [call for call in graph.calls if call.id == "compute"]
    assert isinstance(own.options, ComputeOptions)
    operations = own.options.operations
    (adapted,) = [one for one in operations if isinstance(one, AdaptiveKlCoefficient)]
    assert (adapted.initial, adapted.target, adapted.horizon) == (0.1, 6.0, 10000)
    following = operations[operations.index(adapted) + 1]
    assert isinstance(following, TokenRewards | PenalizedScores)
    assert following.adaptive_coefficient == adapted.coefficient
    assert following.kl_estimator is adapted.kl_estimator
    assert [read_operation(write_term(operation)) for operation in operations] == [*operations]


@pytest.mark.parametrize("kind", POLICY_GRADIENTS)
def test_several_updates_compare_with_the_trainers_own_log_probs(job: Any, kind: str) -> None:
    graph = step_of(job, kind, {"epochsPerBatch": 2})
    assert policy_loss(graph).old_log_probs == "actor_log_probs"
    assert "actor.log_probs" in [call.id for call in graph.calls]


def test_clips_and_aggregation_follow_the_objective(job: Any) -> None:
    def loss(**settings: Any) -> ClippedLoss:
        return policy_loss(step_of(job, "GRPO", settings))

    assert (loss().clip_range, loss().clip_range_high) == (0.2, 0.2)
    assert loss(clipRange=0.1).clip_range_high == 0.1
    gspo = loss(objective="GSPO")
    assert (gspo.clip_range, gspo.clip_range_high) == (3e-4, 4e-4)
    assert gspo.aggregation.value == "SequenceMeanTokenMean"
    cispo = loss(objective="CISPO", clipRangeHigh=2.0)
    assert (cispo.clip_range, cispo.clip_range_high) == (1.0, 2.0)
    dapo = policy_loss(step_of(job, "DAPO"))
    assert (dapo.clip_range, dapo.clip_range_high, dapo.valid) == (0.2, 0.28, "mixed")


def test_remax_and_safe_rlhf_leave_rows_out_that_lack_one_of_two_scores(job: Any) -> None:
    assert policy_loss(step_of(job, "ReMax")).valid == "valid"
    graph = step_of(job, "SafeRLHF")
    for train in ("actor.train", "critic.train", "cost_critic.train"):
        assert "valid" in graph.call(train).reads


def test_overlong_responses_lose_score_and_mixing_goes_by_the_score_itself(job: Any) -> None:
    graph = step_of(job, "DAPO", {"overlongTokens": 8})
    options = graph.call("compute").options
    assert isinstance(options, ComputeOptions)
    shaping, advantages = options.operations
    assert (shaping.writes, advantages.reads[0]) == (("shaped_scores",), "prompt_id")
    assert "shaped_scores" in advantages.reads
    assert "reward_scores" in graph.call("repeat/compute").reads


def test_rows_of_pretraining_are_trained_on_where_they_have_a_weight(job: Any) -> None:
    data = {"train": {"builtin": "SortDigits"}, "pretraining": {"builtin": "SortDigits"}}
    train = step_of(job, "SafeRLHF", {"pretrainingWeight": 0.1}, data=data).call("actor.train")
    assert isinstance(train.options, TrainOptions)
    assert [type(loss).__name__ for loss in train.options.auxiliary] == ["CrossEntropy"]


def test_the_reference_of_online_dpo_catches_up_at_an_iterations_end(job: Any) -> None:
    graph = step_of(job, "OnlineDPO", {"referenceEverySteps": 4})
    assert graph.calls[-1].id == "every-4/reference.copy_weights_from"
    assert graph.calls[-1].copied_role == "actor"


@pytest.mark.parametrize("kind", CALLS)
def test_a_step_is_a_page_at_most(job: Any, kind: str) -> None:
    online = {"referenceEverySteps": 2, "savePairs": True}
    settings = online if kind == "OnlineDPO" else None
    assert step_of(job, kind, settings).roles_with(CallKind.TRAIN)
    made = job(algorithm={"type": kind}, **MANIFESTS.get(kind, {}))
    algorithm = trace_algorithms(made)[GraphName.STEP].algorithm
    assert len(inspect.getsource(type(algorithm).step).splitlines()) <= 20


def test_two_critics_and_a_reward_and_a_cost_live_side_by_side(job: Any) -> None:
    graph = step_of(job, "SafeRLHF")
    writers = {field: call.id for call in graph.calls for field in call.writes}
    assert writers["reward_scores"] == "reward.score" and writers["cost_scores"] == "cost.score"
    sources = {edge.source for edge in graph.data_edges if edge.target == "cost_critic.train"}
    assert sources == {"actor.generate", "compute", "cost_critic.values"}
