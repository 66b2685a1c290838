"""Rows and bars of a timeline of simulated steps: a row per group of devices, a bar per call.

Also formats times and axes for all charts. Pure.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_planner.simulation.event_graph import AlikeRanks, PoolRanks
from rlhf_planner.simulation.simulate import Simulation

HOST_ROW = "hosts"
"""Label of tasks that run on no rank and use no named resource."""
MAX_LABEL_PARTS = 2
"""Ranges of ranks that a row's label names; the others are only counted."""


class Bar(NamedTuple):
    """One run of a task."""

    task: int
    """Number of the task in the graph."""
    iteration: int
    begin: float
    """Seconds from the start of the chart; negative if the task began before it."""
    end: float


@dataclass(frozen=True)
class Row:
    """Bars that do not overlap."""

    label: str
    """Devices, or the name of a resource; empty if the row continues the one above."""
    bars: tuple[Bar, ...]
    """Sorted by time."""
    idle_share: float | None
    """Idle share of a step's time in the long run, 0 to 1; None for rows without ranks."""


@dataclass(frozen=True)
class Chart:
    """A range of steps of a simulation."""

    rows: tuple[Row, ...]
    seconds: float
    """Length, from the start of the first shown step to the end of the last."""
    begins: tuple[tuple[int, float], ...]
    """Iteration of each shown step, and the start of its first task in seconds."""


def build_chart(simulation: Simulation, iterations: range | None = None) -> Chart:
    """Build rows for ranks, sorted by pool and rank, then rows for tasks without ranks.

    Args:
        simulation: to show.
        iterations: range of steps to show; None: all.
    """
    shown = range(len(simulation.ends)) if iterations is None else iterations
    # The last entry of an iteration's times is its end, not a task.
    begins = [min(simulation.begins[number][:-1], default=0.0) for number in shown]
    first = min(begins, default=0.0)
    last = max((simulation.ends[number][-1] for number in shown), default=0.0)
    # Steps overlap: bars of other iterations are shown too if they run in this time.
    bars = [
        Bar(number, iteration, begin - first, end - first)
        for iteration, times in enumerate(zip(simulation.begins, simulation.ends, strict=True))
        for number, (begin, end) in enumerate(zip(*(row[:-1] for row in times), strict=True))
        if begin < last and end > first
    ]
    rows = [*_rank_rows(simulation, bars), *_host_rows(simulation, bars)]
    relative = tuple((number, begin - first) for number, begin in zip(shown, begins, strict=True))
    return Chart(tuple(rows), last - first, relative)


def _rank_rows(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    # Ranks of a group run the same tasks one after another, so one row has no overlaps.
    for use in sorted(simulation.uses, key=lambda use: use.group.ranks[0].ranks.start):
        tasks = set(use.group.tasks)
        own = sorted((bar for bar in bars if bar.task in tasks), key=_sort_key)
        yield Row(group_label(use.group), tuple(own), use.idle_share)


def _host_rows(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    """Rows per resource; more than one only if its tasks overlap."""
    by_label: dict[str, list[Bar]] = defaultdict(list)
    for bar in sorted(bars, key=_sort_key):
        task = simulation.graph.tasks[bar.task]
        if not task.ranks:
            by_label[task.resource or HOST_ROW].append(bar)
    for label, row_bars in by_label.items():
        for number, lane in enumerate(pack_lanes(row_bars)):
            yield Row("" if number else label, tuple(lane), None)


def pack_lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Distribute bars, sorted by time, over the minimum number of lanes without overlap."""
    # First fit in the order of begins is optimal for intervals.
    lanes: list[list[Bar]] = []
    for bar in bars:
        free = next((lane for lane in lanes if lane[-1].end <= bar.begin), None)
        if free is None:
            lanes.append([bar])
        else:
            free.append(bar)
    return lanes


def _sort_key(bar: Bar) -> tuple[float, float, int]:
    return bar.begin, bar.end, bar.task


def group_label(group: AlikeRanks) -> str:
    """Label of a group's devices: `gpu 0-7`, `gpu 0-7, 16-23`, `gpu 0-7, 16-23 and 16 more`."""
    shown, more = group.ranks[:MAX_LABEL_PARTS], group.ranks[MAX_LABEL_PARTS:]
    parts, pool = list[str](), None
    # The pool is named once for neighbouring ranges of the same pool.
    for part in shown:
        parts.append(_numbers(part) if part.pool == pool else f"{part.pool} {_numbers(part)}")
        pool = part.pool
    left = sum(len(part.ranks) for part in more)
    return ", ".join(parts) + (f" and {left} more" if left else "")


def _numbers(part: PoolRanks) -> str:
    first, last = part.ranks.start, part.ranks.stop - 1
    return f"{first}" if first == last else f"{first}-{last}"


def ticks(seconds: float, max_ticks: int) -> tuple[float, ...]:
    """Times of an axis from 0 on, spaced by 1, 2 or 5 times a power of ten.

    Returns 1 to `max_ticks` times in seconds.
    """
    if seconds <= 0 or max_ticks < 2:
        return (0.0,)
    unit = 10.0 ** math.floor(math.log10(seconds / max_ticks))
    # The tick at 0 counts, so the number of gaps must stay below the maximum.
    gap = next(unit * by for by in (1, 2, 5, 10, 20) if seconds / (unit * by) < max_ticks)
    return tuple(number * gap for number in range(int(seconds / gap) + 1))


def format_time(seconds: float) -> str:
    """Format a duration or a time: 0 s, 340 ms, 12.5 s, 1,205 s."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    # 99.95 and above would round to 100.0: no decimals from there on.
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"


def format_tick(seconds: float, marks: Sequence[float]) -> str:
    """Format a time on an axis in the unit of its last mark, without trailing zeros."""
    if marks[-1] < 1 and seconds:
        return f"{seconds * 1000:.6g} ms"
    return f"{seconds:.6g} s"
