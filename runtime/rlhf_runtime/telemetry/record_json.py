"""Records as JSON objects and back. Pure.

JSON has no NaN and no infinities: they become the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from sys import intern
from typing import Any

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
"""The record of every `kind` of line in metrics.jsonl."""

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
    fields = {field.name for field in dataclasses.fields(kind)}
    values = {key: value for key, value in line.items() if key in fields}
    for key in ("metrics", "phases"):
        if key in values:
            # Interned names: long runs have millions of values.
            values[key] = {intern(name): float(value) for name, value in values[key].items()}
    for key in ("seconds", "started", "finished"):
        if key in values:
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
