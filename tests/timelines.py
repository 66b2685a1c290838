"""Overlapping calls in a run's timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.run_folder import RunFolder


def spans_of(spans: Sequence[Span], call: str) -> list[Span]:
    """Spans of a call, named as ROLE.METHOD."""
    return [span for span in spans if f"{span.role}.{span.call}" == call]


def overlapping_steps(folder: Path, first: str, second: str) -> list[int]:
    """Steps in which two calls of different processes overlap.

    Fails if a step lacks a call, or has both in one process.
    """
    run = RunFolder(folder)
    steps = run.read_spans([record.step for record in run.read().steps])
    overlapping = []
    for step, spans in steps.items():
        pairs = list(product(spans_of(spans, first), spans_of(spans, second)))
        assert pairs, f"step {step} has no {first} or no {second}"
        assert all(one.process != other.process for one, other in pairs), (step, first, second)
        if any(one.start < other.end and other.start < one.end for one, other in pairs):
            overlapping.append(step)
    return overlapping
