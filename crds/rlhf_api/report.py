"""StatusReport: what a running job says about itself, for the operator, the CLI and scripts.

The driver serves the latest one and writes the last one to its log. A reader drops reports of
another submission and those whose sequence is not larger than the last one's.
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

REWARD_MEAN = "reward/mean"
"""The metric that stands for a job: the mean reward of a step's responses. Of the role `reward`
where there is one, else of the algorithm's first reward."""


class RunPhase(StrEnum):
    """What a driver does, as its reports say it."""

    START = "Start"
    """It plans, loads and starts its workers."""
    WARM_START = "WarmStart"
    """It trains the actor on reference answers."""
    TRAIN = "Train"
    """It does the algorithm's steps."""
    RESTART = "Restart"
    """It starts its workers again."""
    SUCCEEDED = "Succeeded"
    """All steps are done."""
    FAILED = "Failed"
    """It ended before that."""
    INTERRUPTED = "Interrupted"
    """It was told to stop."""


class CheckpointReport(Contract):
    """The last complete checkpoint."""

    step: NonNegativeCount
    """Steps that it contains."""
    path: Text
    """Where it lies, as the workers see it."""


class StatusReport(Contract):
    """One report of a run."""

    version: Literal["rlhf-operator.dev/report/v1"] = "rlhf-operator.dev/report/v1"
    """The form of the report."""
    job: Name
    """The job's name."""
    submission_id: Text
    """Which start of the driver reports: job, attempt and restart."""
    sequence: NonNegativeCount
    """Counts the reports of a submission up."""
    phase: Identifier
    """What the run is doing, a RunPhase; readers take others, too, as later releases may have."""
    step: NonNegativeCount
    """Steps done."""
    total_steps: NonNegativeCount
    """Steps to do."""
    metrics: Annotated[dict[MetricName, float], Field(max_length=256)] = {}
    """The last step's metrics; a value that is not finite is left out."""
    seconds_remaining: NonNegativeCount | None = None
    """Estimated time to the end. Default: not known yet."""
    tokens_per_second: NonNegativeFloat | None = None
    """Prompt and response tokens per second of the last step. Default: not known yet."""
    checkpoint: CheckpointReport | None = None
    """The last complete checkpoint. Default: none yet."""
    restarts: NonNegativeCount = 0
    """How often this driver replaced its workers."""
    steps_repeated: NonNegativeCount = 0
    """Steps that were done again because no checkpoint held them."""
    heartbeat_seconds: Count | None = None
    """While its workers compute the driver makes a new report at least so often. Default: it
    promises nothing."""
    final: bool = False
    """Whether the run has ended and no report follows."""
    exit_code: ExitCode | None = None
    """How it ended; given if and only if it is final."""
    reason: Identifier | None = None
    """The stable reason of a failure. Default: none failed."""
    message: Annotated[str, Field(max_length=4096)] = ""
    """One line for people."""

    @model_validator(mode="after")
    def _ended_with_a_code(self) -> StatusReport:
        if self.final != (self.exit_code is not None):
            raise ValueError(
                f"a report is final if and only if it has an exit code: got final {self.final} "
                f"and exitCode {self.exit_code}"
            )
        return self

    @property
    def percent(self) -> int:
        """Steps done, of 100."""
        return 100 * self.step // self.total_steps if self.total_steps else 0
