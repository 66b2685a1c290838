"""Content of charts of a simulated step: a row per group of devices, a bar per call. Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_planner.simulation.event_graph import PoolRanks, RankGroup
from rlhf_planner.simulation.simulate import Simulation

OFF_RANKS = "hosts"
"""The row of tasks off the ranks."""
MAX_PARTS = 2
"""Parts of a pool that a row's label names."""


class Bar(NamedTuple):
    """A task of an iteration."""

    task: int
    """Index of the task in the graph."""
    iteration: int
    begin: float
    """Seconds from the start of the chart; may be negative."""
    end: float


@dataclass(frozen=True)
class Row:
    """Bars that do not overlap."""

    label: str
    """The devices, or the resource off the ranks; empty if the row above continues."""
    bars: tuple[Bar, ...]
    """Bars in the order of time."""
    idle_share: float | None
    """Idle share of a step's time in the long run; None off the ranks."""


@dataclass(frozen=True)
class Chart:
    """A part of a simulation as a chart."""

    rows: tuple[Row, ...]
    seconds: float
    """Seconds from the start of the first step shown to the end of the last."""
    begins: tuple[tuple[int, float], ...]
    """Iteration and start of its first task, for each step shown."""


def chart_of(simulation: Simulation, iterations: range | None = None) -> Chart:
    """Rows for the ranks in the order of pools and ranks, then for tasks off the ranks.

    Args:
        simulation: what to show.
        iterations: which of its iterations; None: all. Other iterations are shown in that time,
            too.
    """
    shown = range(len(simulation.ends)) if iterations is None else iterations
    begins = [min(simulation.begins[number][:-1], default=0.0) for number in shown]
    first = min(begins, default=0.0)
    last = max((simulation.ends[number][-1] for number in shown), default=0.0)
    bars = [
        Bar(number, iteration, begin - first, end - first)
        for iteration, times in enumerate(zip(simulation.begins, simulation.ends, strict=True))
        for number, (begin, end) in enumerate(zip(*(row[:-1] for row in times), strict=True))
        if begin < last and end > first
    ]
    rows = [*_rank_rows(simulation, bars), *_rows_off_ranks(simulation, bars)]
    relative = tuple((number, begin - first) for number, begin in zip(shown, begins, strict=True))
    return Chart(tuple(rows), last - first, relative)


def _rank_rows(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    for use in sorted(simulation.uses, key=lambda use: use.group.ranks[0].ranks.start):
        tasks = set(use.group.tasks)
        own = sorted((bar for bar in bars if bar.task in tasks), key=_time_of)
        yield Row(label_of(use.group), tuple(own), use.idle_share)


def _rows_off_ranks(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    """A row per resource, and enough rows for tasks that overlap with anything."""
    by_resource: dict[str, list[Bar]] = defaultdict(list)
    for bar in sorted(bars, key=_time_of):
        task = simulation.graph.tasks[bar.task]
        if not task.ranks:
            by_resource[task.resource or OFF_RANKS].append(bar)
    for resource, resource_bars in by_resource.items():
        for number, lane in enumerate(lanes(resource_bars)):
            yield Row("" if number else resource, tuple(lane), None)


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Bars, in the order of time, in the fewest rows without overlap."""
    lanes_: list[list[Bar]] = []
    for bar in bars:
        lane = next((row for row in lanes_ if row[-1].end <= bar.begin), None)
        if lane is None:
            lanes_.append([bar])
        else:
            lane.append(bar)
    return lanes_


def _time_of(bar: Bar) -> tuple[float, float, int]:
    return bar.begin, bar.end, bar.task


def label_of(group: RankGroup) -> str:
    """The devices of a group: `gpu 0-7`, `gpu 0-7, 16-23`, `gpu 0-7, 16-23 and 16 more`."""
    shown, more = group.ranks[:MAX_PARTS], group.ranks[MAX_PARTS:]
    parts, pool = list[str](), None
    for part in shown:
        parts.append(_numbers(part) if part.pool == pool else f"{part.pool} {_numbers(part)}")
        pool = part.pool
    left = sum(len(part.ranks) for part in more)
    return ", ".join(parts) + (f" and {left} more" if left else "")


def _numbers(part: PoolRanks) -> str:
    first, last = part.ranks.start, part.ranks.stop - 1
    return f"{first}" if first == last else f"{first}-{last}"


def ticks(seconds: float, limit: int) -> tuple[float, ...]:
    """Round times from 0 on, at most `limit`, 1, 2 or 5 times a power of ten apart; at least the
    start."""
    if seconds <= 0 or limit < 2:
        return (0.0,)
    unit = 10.0 ** math.floor(math.log10(seconds / limit))
    gap = next(unit * by for by in (1, 2, 5, 10, 20) if seconds / (unit * by) < limit)
    return tuple(number * gap for number in range(int(seconds / gap) + 1))


def format_time(seconds: float) -> str:
    """A duration or a time: 0 s, 340 ms, 12.5 s, 1,205 s."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"


def format_tick(seconds: float, marks: Sequence[float]) -> str:
    """A time on an axis, in the unit of its last mark, with as few digits as possible."""
    if marks[-1] < 1 and seconds:
        return f"{seconds * 1000:.6g} ms"
    return f"{seconds:.6g} s"
