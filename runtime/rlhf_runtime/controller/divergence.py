"""Detects training that has diverged for good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_runtime.errors import TrainingDiverged

SKIPPED = "/skipped_updates"


@dataclass
class Divergence:
    """Counts consecutive steps with a skipped update."""

    limit: int
    _in_a_row: int = 0

    def record_step(self, step: int, metrics: Mapping[str, float]) -> str:
        """Record the end of a step.

        Returns:
            A notice for the user; empty: none.

        Raises:
            TrainingDiverged: too many consecutive steps had a skipped update.
        """
        skipped = [name for name, value in metrics.items() if name.endswith(SKIPPED) and value]
        self._in_a_row = self._in_a_row + 1 if skipped else 0
        roles = ", ".join(name.removesuffix(SKIPPED) for name in skipped)
        if self._in_a_row >= self.limit:
            raise TrainingDiverged(
                f"loss or gradient were not finite: got updates of the {roles} left out in the "
                f"{self._in_a_row} steps up to {step}, allowed fewer than {self.limit} in a row "
                "(failurePolicy.maxSkippedSteps); lower the learning rate, or look for extreme "
                "rewards; checkpoints are intact"
            )
        # One notice per series of skipped updates.
        if self._in_a_row != 1:
            return ""
        return (
            f"updates of the {roles} are left out from step {step} on: loss or gradient are not "
            f"finite; the job ends after {self.limit} such steps in a row"
        )
