"""Timelines show who was busy when."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.timeline_chart import (
    MAX_LANES,
    busy_seconds,
    lanes,
    process_order,
    sample_steps,
    timeline,
)

from .conftest import MakeStep

TICKS = st.lists(st.tuples(st.integers(0, 50), st.integers(1, 20)), max_size=20)


def spans_of(ticks: list[tuple[int, int]]) -> list[Span]:
    return [Span("rank 0", "", "call", float(a), float(a + n)) for a, n in ticks]


@given(ticks=TICKS)
def test_busy_time_is_the_union_of_the_calls(ticks: list[tuple[int, int]]) -> None:
    seconds = {second for start, length in ticks for second in range(start, start + length)}
    assert busy_seconds(spans_of(ticks)) == len(seconds)


@given(ticks=TICKS)
def test_lanes_hold_every_call_once_and_do_not_overlap(ticks: list[tuple[int, int]]) -> None:
    spans = spans_of(ticks)
    found = lanes(spans)
    assert len(found) <= MAX_LANES
    assert sorted((s.start, s.end) for lane in found for s in lane) == sorted(
        (s.start, s.end) for s in spans
    )
    for lane in found[: MAX_LANES - 1]:
        for before, after in zip(lane, lane[1:], strict=False):
            assert before.end <= after.start


def test_sampled_steps_are_first_last_slowest_and_some_between(make_step: MakeStep) -> None:
    steps = [make_step(n, seconds=9.0 if n == 37 else 1.0) for n in range(1, 101)]
    chosen = sample_steps(steps, 12)
    assert len(chosen) == 12
    assert {1, 37, 100} <= set(chosen)
    assert max(b - a for a, b in zip(chosen, chosen[1:], strict=False)) < 25
    assert sample_steps(steps[:1]) == (1,)
    assert sample_steps([]) == ()
    assert sample_steps(steps[:3]) == (1, 2, 3)


def test_ranks_are_ordered_by_number() -> None:
    names = ["reward", "rank 10", "data", "rank 2", "driver", "rank 0"]
    assert sorted(names, key=process_order) == [
        "driver", "rank 0", "rank 2", "rank 10", "data", "reward",
    ]  # fmt: skip


def test_bars_lie_where_their_calls_were() -> None:
    spans = [
        Span("rank 0", "actor", "generate", 100.0, 105.0),
        Span("rank 1", "actor", "train", 107.5, 110.0),
    ]
    html = timeline(4, spans, {"generate": 0, "train": 1}, limit=10)
    places = re.findall(r"left:([\d.]+)%;width:([\d.]+)%\" data-c=\"([^\"]*)\"", html)
    assert places == [("0.00", "50.00", "actor generate"), ("75.00", "25.00", "actor train")]
    assert re.findall(r'idle" title="[^"]*">(\d+%)', html) == ["50%", "75%"]


def test_short_calls_are_left_out_and_counted() -> None:
    spans = [Span("rank 0", "", "call", float(n), n + 0.1 + n / 100) for n in range(50)]
    html = timeline(1, spans, {"call": 0}, limit=20)
    assert html.count('class="bar') == 20
    assert "30 short calls are not drawn" in html
