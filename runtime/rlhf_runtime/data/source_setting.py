"""Names the manifest's field of a source, for messages and locations of errors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from rlhf_api.problems import FieldPath

_INDEX = re.compile(r"(.*)\[(\d+)\]")


class Split(StrEnum):
    """A source's role in the job: data.train, data.pretraining or data.evaluation."""

    TRAIN = "train"
    PRETRAINING = "pretraining"
    EVALUATION = "evaluation"


@dataclass(frozen=True, slots=True)
class SourceSetting:
    """The manifest's field of a source."""

    split: Split
    """Its role in the job."""
    index: int | None = None
    """Its number among several sources; None: it is the only one."""

    def __str__(self) -> str:
        """The field, such as data.train or data.train.sources[1]."""
        field = f"data.{self.split.value}"
        return field if self.index is None else f"{field}.sources[{self.index}]"

    def location(self, *fields: str) -> FieldPath:
        """Return the path of the source's field, or of a field in it."""
        return (*field_location(str(self)), *fields)


def field_location(field: str) -> FieldPath:
    """Return the path of a field of spec from its text, such as data.train.sources[1].path."""
    location: FieldPath = ("spec",)
    for part in field.split("."):
        match = _INDEX.fullmatch(part)
        location = (*location, part) if match is None else (*location, match[1], int(match[2]))
    return location
