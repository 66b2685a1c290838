"""Reactions of a job to failures."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Identifier, NonNegativeCount
from rlhf_api.exclusive_fields import Alternatives


class FailureAction(StrEnum):
    """Action of a failure rule."""

    FAIL = "Fail"
    """The job fails at once."""
    RESTART = "Restart"
    """The job restarts, and the restart counts against maxRestarts."""
    RESTART_IGNORING_LIMIT = "RestartIgnoringLimit"
    """The job restarts, and the restart does not count."""


class FailureRule(Alternatives):
    """A rule for failures: exactly one of onReason, onExitCodes. The first match decides."""

    alternatives: ClassVar = ("on_reason", "on_exit_codes")

    on_reason: Identifier | None = None
    """Reason of a failure, such as InvalidReward. Default: the rule matches exit codes."""
    on_exit_codes: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=64)
        ]
        | None
    ) = None
    """Exit codes of the driver. Default: the rule matches a reason."""
    action: FailureAction
    """Action on a match: Fail, Restart or RestartIgnoringLimit."""


class FailurePolicy(Contract):
    """Restarts and their limits."""

    max_restarts: NonNegativeCount = 5
    """Largest number of restarts of workers, driver and cluster together since the last new
    checkpoint. Disruptions do not count."""
    max_disruptions: NonNegativeCount = 20
    """Largest number of restarts since the last new checkpoint because a node was drained,
    preempted or lost."""
    backoff_seconds: NonNegativeCount = 30
    """Wait before the second restart since the last new checkpoint. It doubles with each further
    one, up to ten minutes. The first restart does not wait."""
    progress_deadline_seconds: Count = 300
    """Longest time without progress of a rank; then it counts as hung."""
    standby: bool | None = None
    """If true, a process on each node keeps the workers' libraries loaded, so that workers restart
    without importing them. Default: true if the plan has memory for it."""
    max_skipped_steps: Count = 10
    """Longest run of steps whose update is skipped because loss or gradient are not finite; then
    the job fails, with its checkpoints intact."""
    max_unscored_steps: Count = 5
    """Longest run of steps in which no response has a score that counts, as verifiers abstain or
    fail or rollout.onStop leaves all responses out: their updates are left out. Then the job fails,
    with its checkpoints intact. It fails at once if a verifier fails on every response."""
    space_deadline_seconds: NonNegativeCount = 86400
    """Longest wait for space if the disk is full and records or the model cannot be written. The
    workers keep the weights in memory meanwhile. Then the job fails with NoSpace; it is not
    restarted. 0: it does not wait."""
    rules: Annotated[tuple[FailureRule, ...], Field(max_length=32)] = ()
    """Exceptions by reason or exit code; the first match decides."""
