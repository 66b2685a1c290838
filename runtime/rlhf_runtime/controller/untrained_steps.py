"""Detects that training goes on without any response that counts in a loss."""

from __future__ import annotations

from rlhf_runtime.controller.scoring import EMPTY_UPDATES, GRADIENT_NORM
from rlhf_runtime.controller.steps import PassResult
from rlhf_runtime.controller.steps_in_a_row import StepsInARow

# Masked or empty responses may fill a step or two by chance.
NUM_STEPS = 5


class UntrainedSteps:
    """Counts consecutive steps all of whose updates were left out."""

    # No end of the job, as without scores: rollout.onStop may mask all responses of a policy that
    # has not yet learned to end them, while a critic is still trained on others.

    def __init__(self) -> None:
        self._steps = StepsInARow(NUM_STEPS)

    def record_step(self, step: int, done: PassResult) -> str:
        """Record the end of a step.

        Returns:
            A notice for the user; empty: none.
        """
        metrics = done.metrics
        is_left_out = any(name.endswith(EMPTY_UPDATES) for name in metrics)
        has_update = any(name.endswith(GRADIENT_NORM) for name in metrics)
        # `UnscoredSteps` speaks of steps without a score.
        self._steps.record(is_left_out and not has_update and not done.is_unscored)
        if self._steps.count != NUM_STEPS:
            return ""
        masked, left_out = (metrics.get(f"response/{name}", 0.0) for name in ("masked", "left_out"))
        return (
            f"no response counts in a loss in the {NUM_STEPS} steps up to {step}, so weights stay "
            f"as they are: of the last step's responses rollout.onStop masks {masked:.0f} and "
            f"leaves out {left_out:.0f}, and {metrics.get('response/empty', 0.0):.0%} are empty; "
            "raise rollout.maxResponseTokens, or change onStop or stop"
        )
