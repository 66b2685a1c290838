"""Detects training that has diverged for good."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_runtime.controller.steps_in_a_row import StepsInARow
from rlhf_runtime.errors import TrainingDiverged

SKIPPED = "/skipped_updates"


class Divergence:
    """Ends a job after too many consecutive steps with a skipped update."""

    def __init__(self, limit: int) -> None:
        self._steps = StepsInARow(limit)

    def record_step(self, step: int, metrics: Mapping[str, float]) -> str:
        """Record the end of a step.

        Returns:
            A notice for the user; empty: none.

        Raises:
            TrainingDiverged: too many consecutive steps had a skipped update.
        """
        skipped = [name for name, value in metrics.items() if name.endswith(SKIPPED) and value]
        self._steps.record(bool(skipped))
        roles = ", ".join(name.removesuffix(SKIPPED) for name in skipped)
        if self._steps.are_too_many:
            raise TrainingDiverged(
                f"loss or gradient were not finite: got updates of the {roles} left out in the "
                f"{self._steps.count} steps up to {step}, allowed fewer than {self._steps.limit} "
                "in a row "
                "(failurePolicy.maxSkippedSteps); lower the learning rate, or look for extreme "
                "rewards; checkpoints are intact"
            )
        if not self._steps.begin_here:
            return ""
        return (
            f"updates of the {roles} are left out from step {step} on: loss or gradient are not "
            f"finite; the job ends after {self._steps.limit} such steps in a row"
        )
