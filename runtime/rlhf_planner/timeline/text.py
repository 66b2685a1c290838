"""A simulated step as a plain-text chart: a row per group of devices, a letter per call. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from rlhf_planner.simulation.simulate import Simulation
from rlhf_planner.timeline.rows import Chart, Row, chart_of, format_tick, format_time, ticks

IDLE = "."
OTHERS = "#"
"""Mark of calls without a letter."""
MIN_COLUMNS = 20
COLUMNS_PER_TICK = 10
"""Minimum of columns between two times of the scale."""
LONGEST_LABEL = 28
INTRODUCTION = "Devices from top to bottom, time from left to right, a letter for each call:"


def text_timeline(simulation: Simulation, width: int = 100, iterations: range | None = None) -> str:
    """A chart of time from left to right, with a scale, and a legend of its letters.

    A column shows the task with most of its time; the legend marks tasks that are too short to
    show. Odd steps are in capitals, even ones in small letters.

    Args:
        simulation: what to show.
        width: characters of a line; 40 or more.
        iterations: which of its iterations; None: all.
    """
    chart = chart_of(simulation, iterations)
    labels = [row.label[:LONGEST_LABEL] for row in chart.rows]
    margin = max(len("steps"), *map(len, labels), 0) + 2
    columns = max(MIN_COLUMNS, width - margin - len("  100 %"))
    letters = _letters(len(simulation.graph.tasks))
    drawn = [_cells(row, chart.seconds, columns, letters) for row in chart.rows]
    lines = [
        INTRODUCTION,
        "",
        f"{'':{margin}}{_scale(chart.seconds, columns):{columns}}   idle",
        f"{'steps':{margin}}{_steps(chart, columns)}",
    ]
    for row, label, cells in zip(chart.rows, labels, drawn, strict=True):
        idle = "" if row.idle_share is None else f"{row.idle_share:6.0%}"
        lines.append(f"{label:{margin}}{cells}{idle.replace('%', ' %')}")
    lines += ["", *_legend(simulation, chart, letters, set("".join(drawn)))]
    return "\n".join(line.rstrip() for line in lines)


def _letters(num_tasks: int) -> str:
    return (ascii_uppercase + OTHERS * num_tasks)[:num_tasks]


def _cells(row: Row, seconds: float, columns: int, letters: str) -> str:
    """The columns of a row: each shows the task with most of its time."""
    width = seconds / columns
    cells, bars = list[str](), list(row.bars)
    for number in range(columns):
        begin, end = number * width, (number + 1) * width
        while bars and bars[0].end <= begin:
            bars.pop(0)
        longest, cell, idle = 0.0, IDLE, width
        for bar in bars:
            if bar.begin >= end:
                break
            share = min(bar.end, end) - max(bar.begin, begin)
            idle -= share
            if share > longest:
                letter = letters[bar.task]
                longest, cell = share, letter.lower() if bar.iteration % 2 else letter
        cells.append(IDLE if idle > longest else cell)
    return "".join(cells)


def _scale(seconds: float, columns: int) -> str:
    """Round times, each to the right of its mark."""
    marks = ticks(seconds, columns // COLUMNS_PER_TICK)
    return _placed(
        [(mark / (seconds or 1), f"|{format_tick(mark, marks)}") for mark in marks], columns
    )


def _steps(chart: Chart, columns: int) -> str:
    """The number of each step at the start of its first call."""
    places = [(begin / (chart.seconds or 1), f"|{step + 1}") for step, begin in chart.begins]
    return _placed(places, columns)


def _placed(texts: Sequence[tuple[float, str]], columns: int) -> str:
    """Texts at shares of a line; a text that would touch another, or the end, is left out."""
    line = ""
    for share, text in texts:
        column = int(share * columns + 1e-9)
        if (not line or column > len(line)) and column + len(text) <= columns:
            line = f"{line:{column}}{text}"
    return line


def _legend(simulation: Simulation, chart: Chart, letters: str, drawn: set[str]) -> Iterator[str]:
    """The legend: each letter, its duration, and a mark if it is critical."""
    critical = {critical_task.task for critical_task in simulation.critical_path}
    tasks = simulation.graph.tasks
    width = max((len(task.id) for task in tasks), default=0)
    times = [format_time(task.seconds) for task in tasks]
    longest = max(map(len, times), default=0)
    for task, letter, time in zip(tasks, letters, times, strict=True):
        notes = ["*"] if task.id in critical else []
        if letter != OTHERS and not drawn & {letter, letter.lower()}:
            notes.append("(too short to be drawn)")
        yield f"{letter}  {task.id:{width}}  {time:>{longest}}  {' '.join(notes)}"
    yield f"{IDLE}  idle"
    if len(chart.begins) > 1:
        yield "Capitals: steps 1, 3, ...; small letters: steps 2, 4, ..."
    yield (
        f"A step takes {format_time(simulation.step_seconds)} in the long run; calls with * wait "
        "for each other, and make it so long."
    )
