"""What charts of a simulated step show: a row for each group of devices, with a bar for each call.
Pure."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_planner.simulation.event_graph import PoolRanks, RankGroup
from rlhf_planner.simulation.simulate import Simulation

BESIDE_RANKS = "hosts"
"""The row of what runs beside the ranks."""
MOST_PARTS = 2
"""Parts of a pool that a row's label names, of a group that has many."""


class Bar(NamedTuple):
    """A task of an iteration."""

    task: int
    """Its number in the graph."""
    iteration: int
    begin: float
    """Seconds since the chart begins; it may be before it."""
    end: float


@dataclass(frozen=True)
class Row:
    """Bars that do not overlap."""

    label: str
    """The devices, or what runs beside them; empty where the row above goes on."""
    bars: tuple[Bar, ...]
    """In the order of time."""
    idle_share: float | None
    """Of a step's time in the long run; None beside the ranks."""


@dataclass(frozen=True)
class Chart:
    """Some steps of a simulation."""

    rows: tuple[Row, ...]
    seconds: float
    """From the start of the first step shown to the end of the last."""
    begins: tuple[tuple[int, float], ...]
    """Of each step shown: its iteration, and the seconds at which its first task begins."""


def chart_of(simulation: Simulation, iterations: range | None = None) -> Chart:
    """Rows for the ranks in the order of pools and ranks, then for what runs beside them.

    Args:
        simulation: what to show.
        iterations: which of its iterations; None: all. What others do in that time is shown, too.
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
    rows = [*_rank_rows(simulation, bars), *_rows_beside_ranks(simulation, bars)]
    relative = tuple((number, begin - first) for number, begin in zip(shown, begins, strict=True))
    return Chart(tuple(rows), last - first, relative)


def _rank_rows(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    for use in sorted(simulation.uses, key=lambda use: use.group.ranks[0].ranks.start):
        tasks = set(use.group.tasks)
        own = sorted((bar for bar in bars if bar.task in tasks), key=_time_of)
        yield Row(label_of(use.group), tuple(own), use.idle_share)


def _rows_beside_ranks(simulation: Simulation, bars: Sequence[Bar]) -> Iterable[Row]:
    """A row for each resource, and as many as need be for what overlaps with anything."""
    by_place: dict[str, list[Bar]] = defaultdict(list)
    for bar in sorted(bars, key=_time_of):
        task = simulation.graph.tasks[bar.task]
        if not task.ranks:
            by_place[task.resource or BESIDE_RANKS].append(bar)
    for place, found in by_place.items():
        for number, lane in enumerate(lanes(found)):
            yield Row("" if number else place, tuple(lane), None)


def lanes(bars: Iterable[Bar]) -> list[list[Bar]]:
    """Bars, in the order of time, in as few rows as can be without overlap."""
    found: list[list[Bar]] = []
    for bar in bars:
        lane = next((each for each in found if each[-1].end <= bar.begin), None)
        if lane is None:
            found.append([bar])
        else:
            lane.append(bar)
    return found


def _time_of(bar: Bar) -> tuple[float, float, int]:
    return bar.begin, bar.end, bar.task


def label_of(group: RankGroup) -> str:
    """The devices of a group: `gpu 0-7`, `gpu 0-7, 16-23`, `gpu 0-7, 16-23 and 16 more`."""
    shown, more = group.ranks[:MOST_PARTS], group.ranks[MOST_PARTS:]
    parts, pool = list[str](), None
    for part in shown:
        parts.append(_numbers(part) if part.pool == pool else f"{part.pool} {_numbers(part)}")
        pool = part.pool
    left = sum(len(part.ranks) for part in more)
    return ", ".join(parts) + (f" and {left} more" if left else "")


def _numbers(part: PoolRanks) -> str:
    first, last = part.ranks.start, part.ranks.stop - 1
    return f"{first}" if first == last else f"{first}-{last}"


def ticks(seconds: float, most: int) -> tuple[float, ...]:
    """At most so many round times from 0 on, 1, 2 or 5 times a power of ten apart; at least that of
    the start."""
    if seconds <= 0 or most < 2:
        return (0.0,)
    unit = 10.0 ** math.floor(math.log10(seconds / most))
    gap = next(unit * by for by in (1, 2, 5, 10, 20) if seconds / (unit * by) < most)
    return tuple(number * gap for number in range(int(seconds / gap) + 1))


def format_time(seconds: float) -> str:
    """A duration or a time: 0 s, 340 ms, 12.5 s, 1,205 s."""
    if seconds == 0:
        return "0 s"
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.1f} s" if seconds < 99.95 else f"{seconds:,.0f} s"


def format_tick(seconds: float, marks: Sequence[float]) -> str:
    """A time on an axis, in the unit of its last mark, with just the digits that it needs."""
    if marks[-1] < 1 and seconds:
        return f"{seconds * 1000:.6g} ms"
    return f"{seconds:.6g} s"
