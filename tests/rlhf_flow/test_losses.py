"""Which losses the built-in algorithms train by, and what losses refuse."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.policy_loss import KlEstimator, LossAggregation
from rlhf_flow import BradleyTerry, ClippedLoss, CrossEntropy, Dpo, ValueLoss
from rlhf_flow.errors import FlowError
from rlhf_flow.jobs.job_graphs import trace_job
from rlhf_flow.step.calls import TrainOptions
from rlhf_flow.step.operations import (
    AdaptiveKlCoefficient,
    LagrangeMultiplier,
    PenalizedScores,
    TokenRewards,
)


def losses_of(job: Any, kind: str, **settings: Any) -> dict[str, Any]:
    """Of the calls that train."""
    graph = trace_job(job(algorithm={"type": kind.upper(), kind: settings}))[GraphName.STEP]
    found: dict[str, Any] = {}
    for call in graph.calls_of_kind(CallKind.TRAIN):
        assert call.role is not None and isinstance(call.options, TrainOptions)
        found[call.role] = call.options.loss
    return found


def test_grpo_has_its_penalty_in_the_loss(job: Any) -> None:
    losses = losses_of(job, "grpo", klCoefficient=0.1, clipRangeHigh=0.28, epochsPerBatch=2)
    assert losses == {
        "actor": ClippedLoss(
            valid="reward_valid",
            clip_range=0.2,
            clip_range_high=0.28,
            kl_coefficient=0.1,
            kl_estimator=KlEstimator.K3,
            epochs_per_batch=2,
            old_log_probs="actor_log_probs",
            reference_log_probs="reference_log_probs",
        )
    }


@pytest.mark.parametrize(("placement", "expected"), [("Reward", 0.0), ("Loss", 0.1)])
def test_a_penalty_counts_once(job: Any, placement: str, expected: float) -> None:
    losses = losses_of(job, "ppo", klCoefficient=0.1, klPlacement=placement)
    assert losses["actor"].kl_coefficient == expected


def test_ppos_estimator_in_the_loss_has_the_gradient_of_the_divergence(job: Any) -> None:
    losses = losses_of(job, "ppo", klCoefficient=0.1, klPlacement="Loss")
    assert losses["actor"].kl_estimator is KlEstimator.K2


def test_the_critic_shares_epochs_and_aggregation(job: Any) -> None:
    losses = losses_of(
        job,
        "ppo",
        valueClipRange=0.3,
        epochsPerBatch=2,
        lossAggregation="SequenceMeanTokenMean",
    )
    mean = LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN
    assert losses["critic"] == ValueLoss(
        "reward_valid", "critic_values", clip_range=0.3, aggregation=mean, epochs_per_batch=2
    )


def test_a_coefficient_alone_makes_a_loss_read_the_reference() -> None:
    """There is no option beside it that could be forgotten."""
    assert "reference_log_probs" not in ClippedLoss("reward_valid").reads
    assert (
        "reference_log_probs"
        in ClippedLoss(
            "reward_valid",
            kl_coefficient=0.1,
            kl_estimator=KlEstimator.K3,
            reference_log_probs="reference_log_probs",
        ).reads
    )
    assert "actor_log_probs" in ClippedLoss("reward_valid", old_log_probs="actor_log_probs").reads
    assert CrossEntropy().reads == ("prompt_tokens", "response_tokens")


@pytest.mark.parametrize("kind", [ClippedLoss, TokenRewards])
def test_a_kl_penalty_names_its_estimator(kind: type[ClippedLoss | TokenRewards]) -> None:
    with pytest.raises(FlowError, match="without an estimator: got no kl_estimator, allowed KlEs"):
        kind("reward_scores", kl_coefficient=0.1, reference_log_probs="reference_log_probs")


def test_a_correction_of_gradients_is_refused_in_rewards() -> None:
    for kind in (TokenRewards, PenalizedScores):
        with pytest.raises(FlowError, match="K3_CORRECTED.*allowed KlEstimator.K1, K2 or K3 in"):
            kind(
                "reward_scores",
                kl_coefficient=0.1,
                reference_log_probs="reference_log_probs",
                kl_estimator=KlEstimator.K3_CORRECTED,
            )


def test_an_estimator_without_a_gradient_is_refused_in_a_loss() -> None:
    with pytest.raises(FlowError, match="K1, whose gradient is zero on average"):
        ClippedLoss(
            "reward_valid",
            kl_coefficient=0.1,
            reference_log_probs="reference_log_probs",
            kl_estimator=KlEstimator.K1,
        )
    ClippedLoss("reward_valid", kl_coefficient=0.0, kl_estimator=KlEstimator.K1)  # there is no term


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"aggregation": "TokenMean"}, "aggregation='TokenMean', allowed LossAggregation.TOKEN_M"),
        ({"kl_estimator": "K2"}, "kl_estimator='K2', allowed KlEstimator.K1"),
        ({"clip_range": -1}, "clip_range=-1, allowed a number of at least 0"),
        ({"entropy_coefficient": "much"}, "entropy_coefficient='much'"),
        ({"clip_range_high": float("nan")}, "clip_range_high=nan"),
        ({"dual_clip": 1.0}, "dual_clip=1.0, allowed a number above 1, or None"),
        ({"importance_cap": 0.5}, "importance_cap=0.5, allowed a number of at least 1"),
        ({"epochs_per_batch": True}, "epochs_per_batch=True, allowed a number of at least 1"),
    ],
)
def test_settings_that_mean_nothing_are_refused_where_they_are_written(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(FlowError, match=message):
        ClippedLoss("reward_valid", **settings)


@pytest.mark.parametrize("settings", [{"clip_range": -0.1}, {"epochs_per_batch": 0}])
def test_a_value_loss_has_numbers_that_mean_something(settings: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match="ValueLoss cannot have this"):
        ValueLoss("reward_valid", "critic_values", **settings)


def test_a_loss_on_pairs_reads_who_is_chosen_and_has_epochs() -> None:
    loss = BradleyTerry(preference="better", epochs_per_batch=3)
    assert loss.reads == ("prompt_tokens", "response_tokens", "better")
    assert loss.updates(2) == 6
    with pytest.raises(FlowError, match="BradleyTerry cannot have this.*: got epochs_per_batch=0"):
        BradleyTerry(epochs_per_batch=0)


def test_dpo_reads_preferences_and_the_reference_but_not_how_responses_were_sampled() -> None:
    loss = Dpo("judge_log_probs", preference="better", epochs_per_batch=3)
    assert loss.reads == ("prompt_tokens", "response_tokens", "judge_log_probs", "better")
    assert loss.updates(2) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beta": 0.0}, "beta=0.0, allowed a number above 0"),
        ({"label_smoothing": 0.5}, "label_smoothing=0.5, allowed a number from 0 to below 0.5"),
        ({"label_smoothing": -0.1}, "label_smoothing=-0.1"),
        ({"epochs_per_batch": 0}, "epochs_per_batch=0, allowed a number of at least 1"),
        ({"preference": "a-b"}, "preference='a-b', allowed letters of ASCII"),
    ],
)
def test_dpo_refuses_what_means_nothing(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        Dpo("reference_log_probs", **settings)
    with pytest.raises(FlowError, match="reference_log_probs=None"):
        Dpo(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("settings", [{"initial": 0.0}, {"initial": 11}, {"maximum": "most"}])
def test_a_multiplier_begins_between_nothing_and_its_maximum(settings: dict[str, Any]) -> None:
    with pytest.raises(FlowError, match="LagrangeMultiplier cannot have this"):
        LagrangeMultiplier("cost_scores", "cost_valid", **settings)


@pytest.mark.parametrize(
    "settings", [{"initial": 0.0}, {"target": 0}, {"horizon": 0}, {"kl_estimator": "K1"}]
)
def test_an_adaptive_coefficient_needs_a_target_and_a_beginning(settings: dict[str, Any]) -> None:
    usual = {"initial": 0.1, "target": 6.0, "kl_estimator": KlEstimator.K1}
    with pytest.raises(FlowError, match="AdaptiveKlCoefficient cannot have this"):
        AdaptiveKlCoefficient(reference_log_probs="reference_log_probs", **{**usual, **settings})
    with pytest.raises(FlowError, match="allowed a number above 0, the initial one"):
        TokenRewards("reward_scores", adaptive_coefficient="kl_coefficient")
