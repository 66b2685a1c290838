"""Settings of the losses by which roles are trained. Data only; the runtime has the numerics."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.algorithm import KlEstimator, LossAggregation, PolicyLossSettings


@dataclass(frozen=True)
class PolicyLoss:
    """The clipped policy-gradient loss. Fields mean what those of PolicyLossSettings mean."""

    clip_range: float = 0.2
    clip_range_high: float = 0.2
    dual_clip: float | None = None
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0
    """Weight of the KL term in the loss; a penalty in the rewards is none of the loss's
    business."""
    kl_estimator: KlEstimator = KlEstimator.K3
    aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    epochs_per_batch: int = 1

    @classmethod
    def from_settings(cls, settings: PolicyLossSettings, *, kl_in_loss: bool) -> PolicyLoss:
        """The loss that a manifest's settings describe."""
        return cls(
            clip_range=settings.clip_range,
            clip_range_high=settings.clip_high,
            dual_clip=settings.dual_clip,
            entropy_coefficient=settings.entropy_coefficient,
            kl_coefficient=settings.kl_coefficient if kl_in_loss else 0.0,
            kl_estimator=settings.kl_estimator,
            aggregation=settings.loss_aggregation,
            epochs_per_batch=settings.epochs_per_batch,
        )


@dataclass(frozen=True)
class ValueLoss:
    """Half the squared error of the values, clipped or not."""

    clip_range: float | None = None
    """New values stay this close to the old ones. None: no clip."""
    aggregation: LossAggregation = LossAggregation.TOKEN_MEAN
    epochs_per_batch: int = 1
