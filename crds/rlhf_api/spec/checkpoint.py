"""Checkpoints: frequency, retention and storage."""

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
from rlhf_api.exclusive_fields import Alternatives


class PersistentVolumeClaim(Contract):
    """A claim in the job's namespace."""

    claim_name: ObjectName
    """The claim's name; its access mode must be ReadWriteMany."""
    sub_path: (
        Annotated[str, Field(min_length=1, max_length=1024, pattern=FOLDER_PATTERN)] | None
    ) = None
    """A folder in the volume. Default: the job's name."""


class CheckpointStorage(Alternatives):
    """Storage of checkpoints: exactly one field is set."""

    alternatives: ClassVar = ("persistent_volume_claim", "uri")

    persistent_volume_claim: PersistentVolumeClaim | None = None
    """A volume claim, mounted by every pod."""
    uri: Annotated[str, Field(pattern=URI_PATTERN, max_length=1024)] | None = None
    """An address that fsspec understands, such as s3://bucket/prefix."""


class StartMode(StrEnum):
    """Use of the run that a new job finds in its folder."""

    CONTINUE = "Continue"
    """The job resumes from its newest checkpoint."""
    FRESH = "Fresh"
    """The job starts from the beginning; the earlier run's files are kept aside."""


class OnCheckpointError(StrEnum):
    """Reaction to a checkpoint that cannot be written."""

    CONTINUE = "Continue"
    """The error is reported, and training continues; older checkpoints stay."""
    FAIL = "Fail"
    """The job fails; older checkpoints stay."""


EVALUATION_REWARD = "evaluation/reward_mean"
EVALUATION_LENGTH = "evaluation/length_mean"
EXACT_MATCH = "evaluation/exact_match"


class KeepBest(StrEnum):
    """Metric whose largest value marks the best checkpoint among those whose step was evaluated."""

    REWARD_MEAN = "RewardMean"
    """The mean reward, evaluation/reward_mean."""
    LENGTH_MEAN = "LengthMean"
    """The mean length of a response, evaluation/length_mean."""
    EXACT_MATCH = "ExactMatch"
    """Exact match, evaluation/exact_match: a reward's function has to measure it."""
    NONE = "None"
    """No metric: no checkpoint is kept as the best."""

    @property
    def metric(self) -> str | None:
        """Name of the metric; None for no metric."""
        names = {
            KeepBest.REWARD_MEAN: EVALUATION_REWARD,
            KeepBest.LENGTH_MEAN: EVALUATION_LENGTH,
            KeepBest.EXACT_MATCH: EXACT_MATCH,
        }
        return names.get(self)


class FinalModel(StrEnum):
    """The step whose weights become the model that the job leaves."""

    LAST = "Last"
    """The last step."""
    BEST = "Best"
    """The step of the best checkpoint by keepBest."""


class ModelFormat(StrEnum):
    """Number format of the weights in a saved model."""

    SOURCE = "Source"
    """Format of the model that training began with; float32 if that is neither of the others."""
    FLOAT32 = "float32"
    """32 bits: all digits of the trained weights."""
    BFLOAT16 = "bfloat16"
    """16 bits with the range of float32."""


class JournalMode(StrEnum):
    """Use of the journal when a step runs again."""

    EXACT = "Exact"
    """Answers are read. If a question differs, although nothing else does, the job ends."""
    ASK_AGAIN = "AskAgain"
    """Answers are read. Questions that differ are asked again."""
    OFF = "Off"
    """No answers are kept: everything is asked again."""


class CheckpointSpec(Contract):
    """Checkpoints with everything that an exact resume needs."""

    every_steps: NonNegativeCount = 50
    """Steps between checkpoints. 0: only after the warm start, after the last step and on a
    stop."""
    keep_last: Annotated[int, Field(ge=1, le=1000)] = 3
    """Number of checkpoints to keep; older ones are deleted."""
    keep_best: KeepBest = KeepBest.REWARD_MEAN
    """Also keep the checkpoint with the largest value of this evaluation metric: RewardMean,
    LengthMean, ExactMatch or None. Only checkpoints of evaluated steps count."""
    final_model: FinalModel = FinalModel.LAST
    """The model that the job leaves: Last, that of the last step, or Best, that of the best
    checkpoint by keepBest."""
    model_format: ModelFormat = ModelFormat.SOURCE
    """Number format of the model that the job leaves, and of `rlhf export`'s: Source, float32 or
    bfloat16. Checkpoints always have all digits."""
    on_error: OnCheckpointError = OnCheckpointError.CONTINUE
    """Reaction to a checkpoint that cannot be written: Continue or Fail."""
    journal: JournalMode = JournalMode.EXACT
    """Use of the answers of services and judges when a step runs again: Exact reads them, and ends
    the job if a question differs although nothing else does; AskAgain asks such questions again;
    Off keeps no answers. They are kept until no checkpoint needs them."""
    start: StartMode = StartMode.CONTINUE
    """Use of the run that a new job finds in its folder, such as that of a deleted job of its name:
    Continue resumes it; Fresh moves its files to `earlier/1` in the folder, or the next number that
    is free, and starts from the beginning. A job that has begun always resumes its own run. Only on
    a cluster: `rlhf run` ignores it and has the option --fresh."""
    storage: CheckpointStorage | None = None
    """Storage of checkpoints. Default: with `rlhf run` the folder --output; on a cluster the
    chart's jobDefaults."""
