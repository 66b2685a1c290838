"""Settings of an optimizer. Plain data: the driver creates it without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.spec.models import LearningRateDecay


@dataclass(frozen=True)
class OptimizerSettings:
    """Settings of AdamW; linear and cosine decay reach zero at `total_updates`."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    gradient_clip: float
    decay: LearningRateDecay
    warmup_updates: int
    total_updates: int
