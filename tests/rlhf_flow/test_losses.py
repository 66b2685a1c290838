"""Which loss settings an algorithm gives to its trained roles."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.algorithm import KlEstimator, LossAggregation
from rlhf_flow import Algorithm, BatchValue, Flow, PolicyLoss, RoleKind, ValueLoss
from rlhf_flow.registry import build_algorithm


def losses_of(job: Any, kind: str, **settings: Any) -> Any:
    return build_algorithm(job(algorithm={"type": kind, kind: settings})).losses()


def test_grpo_has_its_penalty_in_the_loss(job: Any) -> None:
    losses = losses_of(job, "grpo", klCoefficient=0.1, clipRangeHigh=0.28, epochsPerBatch=2)
    assert losses == {
        "actor": PolicyLoss(
            clip_range=0.2,
            clip_range_high=0.28,
            kl_coefficient=0.1,
            kl_estimator=KlEstimator.K3,
            epochs_per_batch=2,
        )
    }


@pytest.mark.parametrize(("placement", "expected"), [("reward", 0.0), ("loss", 0.1)])
def test_a_penalty_counts_once(job: Any, placement: str, expected: float) -> None:
    losses = losses_of(job, "ppo", klCoefficient=0.1, klPlacement=placement)
    assert losses["actor"].kl_coefficient == expected


def test_the_critic_shares_epochs_and_aggregation(job: Any) -> None:
    losses = losses_of(
        job,
        "ppo",
        valueClipRange=0.3,
        epochsPerBatch=2,
        lossAggregation="sequenceMeanTokenMean",
    )
    mean = LossAggregation.SEQUENCE_MEAN_TOKEN_MEAN
    assert losses["critic"] == ValueLoss(clip_range=0.3, aggregation=mean, epochs_per_batch=2)


def test_an_algorithm_of_ones_own_has_default_losses() -> None:
    class Own(Algorithm):
        def roles(self) -> dict[str, RoleKind]:
            return {
                "actor": RoleKind.POLICY,
                "critic": RoleKind.CRITIC,
                "reference": RoleKind.FROZEN_POLICY,
            }

        def step(self, flow: Flow, prompts: BatchValue) -> None:
            flow.actor.generate(prompts)

    assert Own().losses() == {"actor": PolicyLoss(), "critic": ValueLoss()}
