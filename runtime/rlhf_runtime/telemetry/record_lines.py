"""Records as lines of JSON files, which survive a cut-off at any byte.

JSON has no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from sys import intern
from typing import Any

from rlhf_runtime.telemetry.appended_file import AppendedFile
from rlhf_runtime.telemetry.records import (
    EndRecord,
    EvaluationRecord,
    Outcome,
    Record,
    ResumedRecord,
    RunRecord,
    Span,
    StartupRecord,
    StepRecord,
    UnscoredRecord,
    WarmStartRecord,
)


class JsonLinesWriter(AppendedFile):
    """Appends objects; removes the cut-off last line of an earlier writer."""

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        super().__init__(path)

    def write_line(self, line: Mapping[str, Any]) -> None:
        """Append an object completely or not at all.

        Raises:
            FileLost: the file was deleted or replaced.
            OSError: the disk is full.
        """
        text = json.dumps(line, allow_nan=False, separators=(", ", ": "))
        self.write(text.encode() + b"\n")


def read_lines(path: Path) -> Iterator[bytes]:
    """The non-empty lines of a file; none if there is no such file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a line. None: it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        # Search backwards: the file may be large, and its last line long.
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            position = start
        # No line is complete.
        file.truncate(0)


# The record of every `kind` of line in metrics.jsonl.
KINDS: dict[str, type[Record]] = {
    "run": RunRecord,
    "resumed": ResumedRecord,
    "startup": StartupRecord,
    "warm_start": WarmStartRecord,
    "step": StepRecord,
    "evaluation": EvaluationRecord,
    "unscored": UnscoredRecord,
    "end": EndRecord,
}

_KIND_NAMES = {record: kind for kind, record in KINDS.items()}


def to_json(record: Record) -> dict[str, Any]:
    """The object of a line of metrics.jsonl, without spans, which are in timeline.jsonl."""
    values = {
        field.name: _plain(getattr(record, field.name))
        for field in dataclasses.fields(record)
        if field.name != "spans"
    }
    return {"kind": _KIND_NAMES[type(record)], **values}


def from_json(line: Mapping[str, Any]) -> Record:
    """The record of one line.

    Raises:
        KeyError, TypeError, ValueError: the object is no record.
    """
    kind = KINDS[line["kind"]]
    # Fields of newer releases are ignored.
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {key: value for key, value in line.items() if key in fields}
    for key in ("metrics", "phases"):
        if key in values:
            # Interned names: long runs have millions of values.
            values[key] = {intern(name): float(value) for name, value in values[key].items()}
    for key in ("seconds", "started", "finished"):
        if key in values:
            # `float` also reads "NaN" and "Infinity".
            values[key] = float(values[key])
    if "step" in values:
        values["step"] = int(values["step"])
    if "memory" in values:
        values["memory"] = {intern(name): int(value) for name, value in values["memory"].items()}
    if "outcome" in values:
        values["outcome"] = Outcome(values["outcome"])
    return kind(**values)


def spans_to_json(step: int, spans: Iterable[Span]) -> dict[str, Any]:
    """The object of one line of timeline.jsonl: a step's spans, each as a list."""
    rows = [[s.process, s.role, s.call, round(s.start, 6), round(s.end, 6)] for s in spans]
    return {"step": step, "spans": rows}


def spans_from_json(line: Mapping[str, Any]) -> tuple[int, tuple[Span, ...]]:
    """Step and spans of one line of timeline.jsonl.

    Raises:
        KeyError, TypeError, ValueError: the object is no such line.
    """
    spans = tuple(
        Span(str(process), str(role), str(call), float(start), float(end))
        for process, role, call, start, end in line["spans"]
    )
    return int(line["step"]), spans


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return "NaN"
        return "Infinity" if value > 0 else "-Infinity"
    return value


def plain_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping with NaN and infinities as strings."""
    return {key: _plain(value) for key, value in values.items()}
