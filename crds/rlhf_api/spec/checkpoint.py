"""How often a job's state is saved, and where."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import (
    FOLDER_PATTERN,
    URI_PATTERN,
    Contract,
    NonNegativeCount,
    ObjectName,
)
from rlhf_api.exclusive import Alternatives


class PersistentVolumeClaim(Contract):
    """A claim in the job's namespace."""

    claim_name: ObjectName
    """The claim's name; its access mode must be ReadWriteMany."""
    sub_path: (
        Annotated[str, Field(min_length=1, max_length=1024, pattern=FOLDER_PATTERN)] | None
    ) = None
    """A folder in the volume. Default: the job's name."""


class CheckpointStorage(Alternatives):
    """Where checkpoints lie: exactly one."""

    alternatives: ClassVar = ("persistent_volume_claim", "uri")

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A volume claim, mounted by every pod."""
    uri: Annotated[str, Field(pattern=URI_PATTERN, max_length=1024)] | None = None
    """An address that fsspec understands, such as s3://bucket/prefix."""


class OnCheckpointError(StrEnum):
    """What happens when a checkpoint cannot be written."""

    CONTINUE = "Continue"
    """It is told, and training goes on; older checkpoints stay."""
    FAIL = "Fail"
    """The job fails; older checkpoints stay."""


EVALUATION_REWARD = "evaluation/reward_mean"
EVALUATION_LENGTH = "evaluation/length_mean"
EXACT_MATCH = "evaluation/exact_match"


class KeepBest(StrEnum):
    """What makes one checkpoint the best of those whose step was evaluated: a held-out metric's
    largest value."""

    REWARD_MEAN = "RewardMean"
    """The mean reward, evaluation/reward_mean."""
    LENGTH_MEAN = "LengthMean"
    """The mean length of a response, evaluation/length_mean."""
    EXACT_MATCH = "ExactMatch"
    """Exact match, evaluation/exact_match: a reward's function has to measure it."""
    NONE = "None"
    """Nothing: no checkpoint stays for being the best."""

    @property
    def metric(self) -> str | None:
        """The metric's name; None for none."""
        names = {
            KeepBest.REWARD_MEAN: EVALUATION_REWARD,
            KeepBest.LENGTH_MEAN: EVALUATION_LENGTH,
            KeepBest.EXACT_MATCH: EXACT_MATCH,
        }
        return names.get(self)


class CheckpointSpec(Contract):
    """Checkpoints of everything that an exact resume needs."""

    every_steps: NonNegativeCount = 50
    """Steps from one checkpoint to the next; 0: only after warm start, last step and a stop."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many checkpoints stay; older ones are deleted."""
    keep_best: KeepBest = KeepBest.REWARD_MEAN
    """Of the checkpoints whose step was evaluated, the one with the largest value of this held-out
    metric stays, too: RewardMean, LengthMean, ExactMatch or None."""
    on_error: OnCheckpointError = OnCheckpointError.CONTINUE
    """What happens when one cannot be written: Continue or Fail."""
    storage: CheckpointStorage | None = None
    """Where. Default: `rlhf run` uses --output, a cluster the chart's jobDefaults."""
