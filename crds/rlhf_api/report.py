"""StatusReport: a running job's report of itself, for the operator, the CLI and scripts.

The driver serves the latest report and writes the last one to its log. A reader drops reports of
other submissions, and those whose sequence is not larger than the last accepted one.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field, model_validator

from rlhf_api.base import (
    Contract,
    Count,
    Identifier,
    Name,
    NonNegativeCount,
    NonNegativeFloat,
    Text,
)
from rlhf_api.exits import ExitCode

MetricName = Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9_./-]+$")]

# The main metric of a job: the mean reward of a step's responses. It is that of role `reward` if
# there is one, else of the algorithm's first reward.
REWARD_MEAN = "reward/mean"


class RunPhase(StrEnum):
    """Activity of a driver, as its reports state it."""

    START = "Start"
    """It plans, loads and starts its workers."""
    WARM_START = "WarmStart"
    """It trains the actor on reference answers."""
    TRAIN = "Train"
    """It runs the algorithm's steps."""
    RESTART = "Restart"
    """It starts its workers again."""
    SUCCEEDED = "Succeeded"
    """Training is done: all its steps, or those until an early stop."""
    FAILED = "Failed"
    """It ended before all steps were done."""
    INTERRUPTED = "Interrupted"
    """It stopped on request."""


class CheckpointReport(Contract):
    """The last complete checkpoint."""

    step: NonNegativeCount
    """Number of training steps it contains."""
    path: Text
    """Its path, as the workers see it."""


class SavingProblem(StrEnum):
    """Cause of a failure to save."""

    NO_SPACE = "NoSpace"
    """The disk or a quota is full."""
    WRITE_FAILED = "WriteFailed"
    """Any other error of the storage."""


class SavingReport(Contract):
    """Outcome of the last attempt to save, and of earlier ones."""

    failures: NonNegativeCount = 0
    """Checkpoints that this driver could not write."""
    reason: Identifier | None = None
    """Cause of the last failure, a SavingProblem. Readers accept other values. Default: it
    succeeded."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """One line for people: the step of the first failed attempt, and the error of the last."""


class StatusReport(Contract):
    """One report of a run."""

    version: Literal["rlhf-operator.dev/report/v1"] = "rlhf-operator.dev/report/v1"
    """The form of the report."""
    job: Name
    """The job's name."""
    submission_id: Text
    """Id of the driver's start: job, attempt and restart."""
    sequence: NonNegativeCount
    """Number of the report within its submission, ascending."""
    phase: Identifier
    """Activity of the run, a RunPhase. Readers accept other values, which a later release may
    add."""
    step: NonNegativeCount
    """Steps done."""
    total_steps: NonNegativeCount
    """Steps to do."""
    metrics: Annotated[dict[MetricName, float], Field(max_length=256)] = {}
    """The last step's metrics; a value that is not finite is left out."""
    seconds_remaining: NonNegativeCount | None = None
    """Estimated seconds to the end. Default: not known yet."""
    tokens_per_second: NonNegativeFloat | None = None
    """Prompt and response tokens per second of the last step. Default: not known yet."""
    checkpoint: CheckpointReport | None = None
    """The last complete checkpoint. Default: none yet."""
    saving: SavingReport | None = None
    """Outcome of saving. Default: it has saved nothing yet, or is of an earlier release."""
    takeover: Text | None = None
    """Sentence for people about the takeover of its folder from an earlier run. Default: the folder
    was new."""
    restarts: NonNegativeCount = 0
    """Number of times this driver has replaced its workers."""
    disruptions: NonNegativeCount = 0
    """Restarts that followed the loss of a node, as part of restarts."""
    steps_repeated: NonNegativeCount = 0
    """Steps that were repeated because no checkpoint contained them."""
    heartbeat_seconds: Count | None = None
    """Longest time between two reports while workers compute. Default: no promise."""
    final: bool = False
    """True if the run has ended and no report follows."""
    exit_code: ExitCode | None = None
    """Exit code of the driver; present if and only if the report is final."""
    reason: Identifier | None = None
    """Stable reason of a failure. Default: nothing failed."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """One line for people."""

    @model_validator(mode="after")
    def _require_exit_code_if_final(self) -> StatusReport:
        if self.final != (self.exit_code is not None):
            raise ValueError(
                f"a report is final if and only if it has an exit code: got final {self.final} "
                f"and exitCode {self.exit_code}"
            )
        return self

    @property
    def percent(self) -> int:
        """Steps done, in percent."""
        return 100 * self.step // self.total_steps if self.total_steps else 0
