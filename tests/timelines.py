"""What a run's timeline shows: which calls of a step ran at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.run_folder import RunFolder


def spans_of(spans: Sequence[Span], call: str) -> list[Span]:
    """Those of a call, named as ROLE.METHOD."""
    return [span for span in spans if f"{span.role}.{span.call}" == call]


def overlapping_steps(folder: Path, first: str, second: str) -> list[int]:
    """The steps in which two calls ran at the same time, each in processes of its own.

    Fails where a step has none of a call, or both in one process.
    """
    run = RunFolder(folder)
    steps = run.read_spans([record.step for record in run.read().steps])
    found = []
    for step, spans in steps.items():
        pairs = list(product(spans_of(spans, first), spans_of(spans, second)))
        assert pairs, f"step {step} has no {first} or no {second}"
        assert all(one.process != other.process for one, other in pairs), (step, first, second)
        if any(one.start < other.end and other.start < one.end for one, other in pairs):
            found.append(step)
    return found
