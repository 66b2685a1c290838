"""Plain text timeline of simulated steps: a row per group of devices, a letter per call. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from string import ascii_uppercase

from rlhf_planner.simulation.simulate import Simulation
from rlhf_planner.timeline.rows import Chart, Row, build_chart, format_tick, format_time, ticks

IDLE = "."
OTHERS = "#"
"""Shared sign of all calls after the 26th."""
MIN_COLUMNS = 20
COLUMNS_PER_TICK = 10
"""Minimum distance of two times on the scale."""
MAX_LABEL_CHARACTERS = 28
INTRODUCTION = "Devices from top to bottom, time from left to right, a letter for each call:"


def text_timeline(simulation: Simulation, width: int = 100, iterations: range | None = None) -> str:
    """Draw a chart with time from left to right, a scale, and a legend of the letters.

    A column shows the call that takes most of its time; the legend marks calls too short to appear.
    Odd steps are in capitals, even ones in small letters.

    Args:
        simulation: to draw.
        width: characters of a line; 40 or more.
        iterations: range of steps to draw; None: all.
    """
    chart = build_chart(simulation, iterations)
    labels = [row.label[:MAX_LABEL_CHARACTERS] for row in chart.rows]
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
    """A row of characters; each stands for the call that takes most of its column's time."""
    width = seconds / columns
    cells, bars = list[str](), list(row.bars)
    for number in range(columns):
        begin, end = number * width, (number + 1) * width
        # Bars are sorted by time: those that have ended are never needed again.
        while bars and bars[0].end <= begin:
            bars.pop(0)
        longest, cell, idle = 0.0, IDLE, width
        for bar in bars:
            if bar.begin >= end:
                break
            overlap = min(bar.end, end) - max(bar.begin, begin)
            idle -= overlap
            if overlap > longest:
                # Steps alternate between capitals and small letters to keep neighbours distinct.
                letter = letters[bar.task]
                longest, cell = overlap, letter.lower() if bar.iteration % 2 else letter
        cells.append(IDLE if idle > longest else cell)
    return "".join(cells)


def _scale(seconds: float, columns: int) -> str:
    """Times of the axis, each after a mark at its column."""
    marks = ticks(seconds, columns // COLUMNS_PER_TICK)
    return _join_texts(
        [(mark / (seconds or 1), f"|{format_tick(mark, marks)}") for mark in marks], columns
    )


def _steps(chart: Chart, columns: int) -> str:
    """Numbers of steps, at the beginnings of their first calls."""
    texts = [(begin / (chart.seconds or 1), f"|{step + 1}") for step, begin in chart.begins]
    return _join_texts(texts, columns)


def _join_texts(texts: Sequence[tuple[float, str]], columns: int) -> str:
    """Write texts at shares (0 to 1) of a line; omit those that would touch another or the end."""
    line = ""
    for share, text in texts:
        # The small term keeps a share that rounding puts just below its column.
        column = int(share * columns + 1e-9)
        if (not line or column > len(line)) and column + len(text) <= columns:
            line = f"{line:{column}}{text}"
    return line


def _legend(simulation: Simulation, chart: Chart, letters: str, drawn: set[str]) -> Iterator[str]:
    """One line per task: letter, id, duration, and * if it is on the critical path."""
    critical = {entry.task for entry in simulation.critical_path}
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
        f"A step takes {format_time(simulation.step_seconds)} in the long run. Calls marked * are "
        "on the critical path."
    )
