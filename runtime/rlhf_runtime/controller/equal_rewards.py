"""Detects rewards that are all equal from the first step on, of which nothing can be learned."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

# A policy that rarely succeeds may have equal rewards in a step or two.
NUM_STEPS = 5
# Means of equal float32 numbers differ by rounding.
TOLERANCE = 1e-6


@dataclass
class EqualRewards:
    """Compares the rewards of the first steps.

    headline: the metric of their mean, such as reward/mean; None: the job has no rewards.
    """

    headline: str | None
    _value: float = math.nan
    _num_equal: int = 0

    def record_step(self, step: int, metrics: Mapping[str, float]) -> str:
        """Record the end of a step.

        Returns:
            A notice for the user; empty: none.
        """
        # After a resume the steps before it are unknown.
        is_next = step == self._num_equal + 1 and step <= NUM_STEPS
        if self.headline is None or not is_next:
            return ""
        mean = metrics.get(self.headline, math.nan)
        deviation = metrics.get(f"{self.headline.removesuffix('mean')}std", math.nan)
        if step == 1:
            self._value = mean
        if not _is_close(deviation, 0.0) or not _is_close(mean, self._value):
            return ""
        self._num_equal = step
        if step < NUM_STEPS:
            return ""
        return (
            f"all rewards of the first {NUM_STEPS} steps are {mean:g}, so nothing can be learned "
            "from them: see what the model writes (rlhf samples), and what verifiers say of a "
            "right answer (rlhf validate --deep)"
        )


def _is_close(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
