"""The learning rate of each update: warm-up and decay. Plain data, without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rlhf_api.spec.models import LearningRateDecay


@dataclass(frozen=True)
class LearningRateSchedule:
    """A learning rate that rises to its peak and decays."""

    learning_rate: float
    """The peak."""
    decay: LearningRateDecay
    warmup_updates: int
    total_updates: int

    def rate_factor(self, update: int) -> float:
        """Factor on the learning rate of an update, which is counted from 0.

        The warm-up rises in equal steps, and its last update has the full rate. Linear and cosine
        decay reach zero at `total_updates`.
        """
        if update < self.warmup_updates:
            # Not update / warmup_updates: a first step at rate 0 would be spent for nothing.
            return (update + 1) / self.warmup_updates
        falling = max(1, self.total_updates - self.warmup_updates)
        remaining = max(0.0, 1 - (update - self.warmup_updates) / falling)
        match self.decay:
            case LearningRateDecay.NONE:
                return 1.0
            case LearningRateDecay.LINEAR:
                return remaining
            case LearningRateDecay.COSINE:
                return (1 - math.cos(math.pi * remaining)) / 2
