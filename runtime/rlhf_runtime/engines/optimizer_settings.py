"""Settings of an optimizer. Plain data: the driver creates it without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_runtime.engines.learning_rate import LearningRateSchedule


@dataclass(frozen=True)
class OptimizerSettings(LearningRateSchedule):
    """Settings of AdamW, with the schedule of its learning rate."""

    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    gradient_clip: float
