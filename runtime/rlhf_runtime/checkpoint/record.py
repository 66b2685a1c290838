"""What a checkpoint says about itself: `checkpoint.json`, written last. Pure."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VERSION = 1
RECORD_FILE = "checkpoint.json"


def new_digest() -> hashlib.blake2b:
    """The digest that files are known by, of nothing so far."""
    return hashlib.blake2b(digest_size=16)


@dataclass(frozen=True)
class SavedFile:
    """A file as it was written."""

    num_bytes: int
    digest: str
    """BLAKE2b, 16 bytes, in hexadecimal."""


@dataclass(frozen=True)
class CheckpointRecord:
    """A checkpoint is whole if this is there and every file is as it says."""

    step: int
    """Training steps that the state has behind it; 0: the warm start only."""
    world_size: int
    """Ranks that wrote it."""
    spec: Mapping[str, Any]
    """The job's spec in force, with defaults."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """Held-out metrics of this step, if it was evaluated."""
    files: Mapping[str, SavedFile] = field(default_factory=dict)
    """By name, without this record's own."""
    policy: str = ""
    """The role whose model the job leaves; empty in checkpoints that were written before."""
    precisions: Mapping[str, str] = field(default_factory=dict)
    """Number formats that roles compute in and models are left in, by role."""
    version: int = VERSION

    def to_text(self) -> str:
        """The file's text."""
        return json.dumps(dataclasses.asdict(self), indent=1) + "\n"

    @staticmethod
    def from_text(text: str) -> CheckpointRecord:
        """The record that a file's text is.

        Raises:
            ValueError: it is none, or one of another version.
        """
        try:
            fields = json.loads(text)
            if fields["version"] != VERSION:
                raise ValueError(f"of version {fields['version']}, this is {VERSION}")
            files = {name: SavedFile(**file) for name, file in fields.pop("files").items()}
            return CheckpointRecord(**fields, files=files)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a record of a checkpoint: {error}") from error
