"""Detects that training goes on without any score that counts."""

from __future__ import annotations

from rlhf_runtime.controller.steps import PassResult
from rlhf_runtime.controller.steps_in_a_row import StepsInARow
from rlhf_runtime.rewards.errors import NothingScored

ABSTAINED = "score/abstained/"
"""Before a reward's name."""


class UnscoredSteps:
    """Ends a job after too many consecutive steps in which no response has a score that counts."""

    def __init__(self, limit: int) -> None:
        self._steps = StepsInARow(limit)

    def record_step(self, step: int, done: PassResult) -> str:
        """Record the end of a step.

        Returns:
            A notice for the user; empty: none.

        Raises:
            NothingScored: too many consecutive steps had no score.
        """
        self._steps.record(done.is_unscored)
        if self._steps.are_too_many:
            raise NothingScored(
                f"no response has a score that counts: got none in the {self._steps.count} steps "
                f"up to {step}, allowed fewer than {self._steps.limit} in a row "
                "(failurePolicy.maxUnscoredSteps); see why verifiers abstain or fail, or why "
                "rollout.onStop leaves responses out; checkpoints are intact. "
                f"{_causes(step, done)}",
                first_step=step - self._steps.count + 1,
            )
        if not self._steps.begin_here:
            return ""
        return (
            f"nothing is left to train on from step {step} on: no response has a score that "
            "counts (verifiers abstained or failed, or rollout.onStop leaves responses out); "
            f"updates are left out, and the job ends after {self._steps.limit} such steps in a row"
        )


def _causes(step: int, done: PassResult) -> str:
    """Say what happened to a step's responses, and the first error."""
    metrics = done.metrics
    causes = [
        f"{name.removeprefix(ABSTAINED)} abstained on {count:.0f}"
        for name, count in metrics.items()
        if name.startswith(ABSTAINED) and count
    ]
    if invalid := metrics.get("score/invalid"):
        causes.append(f"verifiers failed on {invalid:.0f}")
    if left_out := metrics.get("response/left_out"):
        causes.append(f"rollout.onStop left out {left_out:.0f}")
    text = f"Of the responses of step {step}: {', '.join(causes) or 'none counts'}"
    for name, failure in done.unscored[:1]:
        text += f"; first error, of {name}: {failure}"
    return text


def unscored_evaluation(steps: str) -> str:
    """Return the notice of an evaluation in which no response has a score.

    Args:
        steps: those before it, such as "step 10".
    """
    return (
        f"nothing is left to measure in the evaluation after {steps}: no response has a score "
        "(verifiers abstained or failed); it has no mean score"
    )
