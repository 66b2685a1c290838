"""SVG timeline of simulated steps: a row per group of devices, a bar per call. Pure.

The picture is self-contained: it needs no network, styles or scripts. It shows planned times; the
runtime's report draws measured ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

from rlhf_planner.simulation.event_graph import Task
from rlhf_planner.simulation.simulate import Simulation
from rlhf_planner.timeline.rows import (
    Bar,
    Chart,
    Row,
    build_chart,
    format_tick,
    format_time,
    ticks,
)

# Light enough for text in INK. Tooltips name the role too: colour is never the only clue.
COLOURS = ("#88ccee", "#f0a860", "#8fd3a2", "#f4a6c0", "#e8d96a", "#b3b8f0", "#c9c9c9", "#d9b38c")
"""Colours of roles, in program order; repeated if there are more roles."""
INK = "#111111"
"""Colour of text on bars."""
WIDTH, LABELS, IDLE = 1000, 190, 56
"""Widths of the picture, the row labels and the idle shares, in units that the page scales."""
ROW, GAP, TOP = 26, 6, 34
"""Heights of a bar, of the gap between rows, and of the header."""
CHARACTER = 6.6
"""Average width of a character of a bar's text."""
PLOT = WIDTH - LABELS - IDLE
"""Width of the time axis."""


def svg_timeline(simulation: Simulation, iterations: range | None = None) -> str:
    """Draw an `<svg>` element.

    Each bar has a tooltip with its task, step and duration. Bars on the critical path have a thick
    border.

    Args:
        simulation: to draw.
        iterations: range of steps to draw; None: all.
    """
    chart = build_chart(simulation, iterations)
    colours = role_colours(simulation)
    critical = {entry.task for entry in simulation.critical_path}
    height = TOP + len(chart.rows) * (ROW + GAP) + 30
    parts = [*_axis(chart), *_steps(chart)]
    for number, row in enumerate(chart.rows):
        top = TOP + number * (ROW + GAP)
        parts += _row(simulation, row, top, chart.seconds, colours, critical)
    parts += _legend(colours, height - 8)
    step = format_time(simulation.step_seconds)
    about = f"Planned timeline: a step takes {step} in the long run"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(about, quote=True)}" font-family="sans-serif" font-size="12" '
        f'fill="currentColor">{"".join(parts)}</svg>'
    )


def role_colours(simulation: Simulation) -> Mapping[str, str]:
    """Assign a colour to each role, in program order."""
    roles = dict.fromkeys(role_name(task) for task in simulation.graph.tasks)
    return {role: COLOURS[number % len(COLOURS)] for number, role in enumerate(roles)}


def role_name(task: Task) -> str:
    """Role of a call; the call's own name if it belongs to no role."""
    # Ids are region/role.method#number, such as every-10/actor.log_probs#2.
    return task.id.rpartition("/")[2].partition("#")[0].partition(".")[0]


def _row(
    simulation: Simulation,
    row: Row,
    top: float,
    seconds: float,
    colours: Mapping[str, str],
    critical: set[str],
) -> Iterator[str]:
    middle = top + ROW / 2 + 4
    yield f'<text x="{LABELS - 10}" y="{middle:g}" text-anchor="end">{escape(row.label)}</text>'
    yield (
        f'<rect x="{LABELS}" y="{top:g}" width="{PLOT}" height="{ROW}" fill="currentColor" '
        'fill-opacity="0.06"/>'
    )
    for bar in row.bars:
        yield _bar(simulation, bar, top, seconds, colours, critical)
    if row.idle_share is not None:
        yield (
            f'<text x="{WIDTH - 2}" y="{middle:g}" text-anchor="end">{row.idle_share:.0%}'
            "<title>idle share of a step</title></text>"
        )


def _bar(
    simulation: Simulation,
    bar: Bar,
    top: float,
    seconds: float,
    colours: Mapping[str, str],
    critical: set[str],
) -> str:
    task = simulation.graph.tasks[bar.task]
    # Clip bars that reach beyond the chart.
    left, right = (_x(max(0.0, min(seconds, at)), seconds) for at in (bar.begin, bar.end))
    is_critical = task.id in critical
    about = (
        f"{task.id}, step {bar.iteration + 1}: {format_time(task.seconds)}"
        f"{', on the critical path' if is_critical else ''}"
    )
    name = task.id.rpartition("/")[2]
    # The longest text that fits: the call, its method, or none.
    texts = (name, name.partition(".")[2])
    text = next((text for text in texts if len(text) * CHARACTER + 8 <= right - left), "")
    # The minimum width keeps very short bars visible.
    return (
        f"<g><title>{escape(about)}</title>"
        f'<rect x="{left:.2f}" y="{top:g}" width="{max(right - left, 0.5):.2f}" height="{ROW}" '
        f'rx="2" fill="{colours[role_name(task)]}" stroke="{INK}" '
        f'stroke-width="{2 if is_critical else 0.5}"/>'
        f'<text x="{left + 4:.2f}" y="{top + ROW / 2 + 4:g}" fill="{INK}">{escape(text)}</text></g>'
    )


def _x(at: float, seconds: float) -> float:
    # A simulation without duration has all marks at the left edge.
    return LABELS + (at / seconds * PLOT if seconds else 0.0)


def _axis(chart: Chart) -> Iterator[str]:
    marks = ticks(chart.seconds, 8)
    bottom = TOP + len(chart.rows) * (ROW + GAP)
    for mark in marks:
        x = _x(mark, chart.seconds)
        yield (
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP - 6}" y2="{bottom}" stroke="currentColor" '
            'stroke-opacity="0.2"/>'
            f'<text x="{x:.2f}" y="{TOP - 22}" text-anchor="middle">'
            f"{format_tick(mark, marks)}</text>"
        )
    yield f'<text x="{WIDTH - 2}" y="{TOP - 22}" text-anchor="end">idle</text>'


def _steps(chart: Chart) -> Iterator[str]:
    """Labels at the beginnings of steps."""
    for iteration, begin in chart.begins:
        x = _x(begin, chart.seconds)
        yield f'<text x="{x:.2f}" y="{TOP - 8}" font-weight="bold">step {iteration + 1}</text>'


def _legend(colours: Mapping[str, str], bottom: float) -> Iterator[str]:
    left = float(LABELS)
    for role, colour in colours.items():
        yield (
            f'<rect x="{left:.1f}" y="{bottom - 10:g}" width="12" height="12" fill="{colour}" '
            f'stroke="{INK}" stroke-width="0.5"/>'
            f'<text x="{left + 17:.1f}" y="{bottom:g}">{escape(role)}</text>'
        )
        left += 36 + len(role) * CHARACTER
    yield (
        f'<text x="{WIDTH - IDLE}" y="{bottom:g}" text-anchor="end" font-style="italic">'
        "thick border: on the critical path</text>"
    )
