"""What a job does when something fails."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import Contract, Count, Identifier, NonNegativeCount
from rlhf_api.exclusive import Alternatives


class FailureAction(StrEnum):
    """What a failure rule does."""

    FAIL = "Fail"
    """The job fails at once."""
    RESTART = "Restart"
    """The job restarts; it counts against maxRestarts."""
    RESTART_IGNORING_LIMIT = "RestartIgnoringLimit"
    """The job restarts; it does not count."""


class FailureRule(Alternatives):
    """The first rule that matches a failure decides: exactly one of onReason, onExitCodes."""

    alternatives: ClassVar = ("on_reason", "on_exit_codes")

    on_reason: Identifier | None = None
    """A failure's reason, such as InvalidReward. Default: the rule goes by exit code."""
    on_exit_codes: (
        Annotated[
            tuple[Annotated[int, Field(ge=1, le=255)], ...], Field(min_length=1, max_length=64)
        ]
        | None
    ) = None
    """Exit codes of the driver. Default: the rule goes by reason."""
    action: FailureAction
    """What happens then: Fail, Restart or RestartIgnoringLimit."""


class FailurePolicy(Contract):
    """Restarts and their limits."""

    max_restarts: NonNegativeCount = 5
    """Restarts of workers, driver and cluster together since the last new checkpoint."""
    backoff_seconds: NonNegativeCount = 30
    """Wait before the second restart since the last new checkpoint; it doubles with each further
    one, to ten minutes at most. The first waits for nothing."""
    progress_deadline_seconds: Count = 300
    """A rank that makes no progress for so long is taken for hung."""
    standby: bool | None = None
    """Whether a process of each node stands by with the workers' libraries in memory, so that
    workers start again without importing them. Default: where the plan says that it fits."""
    max_skipped_steps: Count = 10
    """Steps in a row whose update is left out because loss or gradient are not finite; then the job
    fails, with its checkpoints intact."""
    rules: Annotated[tuple[FailureRule, ...], Field(max_length=32)] = ()
    """Exceptions by reason or exit code; the first match decides."""
