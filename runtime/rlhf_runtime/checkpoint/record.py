"""Description of a checkpoint: `checkpoint.json`, written last. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan, nan
from typing import Any

VERSION = 1
RECORD_FILE = "checkpoint.json"


def new_digest() -> hashlib.blake2b:
    """Return an empty digest of the kind that identifies files."""
    return hashlib.blake2b(digest_size=16)


@dataclass(frozen=True)
class SavedFile:
    """Size and digest of a file when it was written."""

    num_bytes: int
    digest: str
    """BLAKE2b, 16 bytes, in hexadecimal."""


@dataclass(frozen=True)
class CheckpointRecord:
    """Contents of a checkpoint. A checkpoint is complete if its record exists and every file
    matches it."""

    step: int
    """Training steps that are completed; 0: only the warm start."""
    world_size: int
    """Number of ranks that wrote it."""
    spec: Mapping[str, Any]
    """The job's spec in force, with defaults."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Evaluation metrics of this step, if it was evaluated."""
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    """By name, without the record itself."""
    policy: str = ""
    """The role whose model is the job's result; empty in checkpoints of earlier releases."""
    evaluations: Sequence[tuple[int, Mapping[str, float]]] = ()
    """Step and metrics of every evaluation up to this step, in order; of the metrics those that
    checkpoint.keepBest can name. From checkpoints of earlier releases only that of this step."""
    version: int = VERSION

    @property
    def num_bytes(self) -> int:
        """Size of all files."""
        return sum(file.num_bytes for file in self.files.values())

    def to_text(self) -> str:
        """Serialize to JSON."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_text(text: str) -> CheckpointRecord:
        """Parse JSON.

        Raises:
            ValueError: the text is no record, or has another version.
        """
        try:
            fields = json.loads(text)
            if fields["version"] != VERSION:
                raise ValueError(f"of version {fields['version']}, this is {VERSION}")
            files = {name: SavedFile(**file) for name, file in fields.pop("files").items()}
            step, metrics = fields["step"], fields.get("metrics")
            fields.pop("precisions", None)  # of earlier releases
            # Earlier releases recorded only the evaluation of the step itself.
            evaluations = fields.pop("evaluations", [(step, metrics)] if metrics else [])
            # JSON has no tuples.
            pairs = tuple((step, metrics) for step, metrics in evaluations)
            return CheckpointRecord(**fields, files=files, evaluations=pairs)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a record of a checkpoint: {error}") from error


def best_first(records: Iterable[CheckpointRecord], metric: str) -> list[CheckpointRecord]:
    """Return the records that have an evaluation metric, the largest value first; of equal ones the
    latest."""
    measured = [record for record in records if not isnan(record.metrics.get(metric, nan))]
    return sorted(measured, key=lambda record: (record.metrics[metric], record.step), reverse=True)
