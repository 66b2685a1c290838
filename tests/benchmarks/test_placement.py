"""Idle shares and timelines of a step, from its spans."""

from __future__ import annotations

import pytest

from rlhf_runtime.telemetry.records import Span, StepRecord

STEP = StepRecord(
    1,
    {},
    {},
    4.0,
    0,
    spans=[
        Span("rank 0", "actor", "generate", 10.0, 12.0),
        Span("rank 1", "critic", "values", 12.0, 13.0),
        Span("rank 0", "actor", "train", 12.5, 14.0),
        Span("rank 1", "critic", "train", 12.5, 14.0),
    ],
)


def test_time_without_a_call_is_idle() -> None:
    from placement import idle_share

    assert idle_share(STEP, "rank 0") == pytest.approx(0.5 / 4)
    assert idle_share(STEP, "rank 1") == pytest.approx(2 / 4), "overlapping calls count once"


def test_a_timeline_has_a_line_per_process() -> None:
    from placement import WIDTH, timeline

    first, second = (line.split(maxsplit=2)[2] for line in timeline(STEP))
    assert len(first) == len(second) == WIDTH
    assert (first[0], first[WIDTH * 9 // 16], first[-1]) == ("g", ".", "T")
    assert set(second[: WIDTH // 2 - 1]) == {"."} and second[WIDTH // 2] == "v"
