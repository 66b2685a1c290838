"""A simulated step as an SVG picture: a row per group of devices, a bar per call. Pure; the picture
needs neither network nor styles nor scripts.
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
    chart_of,
    format_tick,
    format_time,
    ticks,
)

COLOURS = ("#88ccee", "#f0a860", "#8fd3a2", "#f4a6c0", "#e8d96a", "#b3b8f0", "#c9c9c9", "#d9b38c")
"""Colours of roles, in the order in which they appear. Light enough for INK, and never the only
mark of a bar's role."""
INK = "#111111"
"""Text on bars."""
WIDTH, LABELS, IDLE = 1000, 190, 56
"""Widths of the picture, of its rows' labels, and of idle shares, in its own units, which the page
scales."""
ROW, GAP, TOP = 26, 6, 34
"""Heights of a bar, between two rows, and above them."""
CHARACTER = 6.6
"""Width of a character of a bar's text."""
PLOT = WIDTH - LABELS - IDLE


def svg_timeline(simulation: Simulation, iterations: range | None = None) -> str:
    """Draw an `<svg>` element. Each bar shows its call and times on hovering; critical ones have a
    thick border.

    Args:
        simulation: what to draw.
        iterations: which of its iterations; None: all.
    """
    chart = chart_of(simulation, iterations)
    colours = role_colours(simulation)
    critical = {critical_task.task for critical_task in simulation.critical_path}
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
    """The colour of each role, in program order."""
    roles = dict.fromkeys(role_of(task) for task in simulation.graph.tasks)
    return {role: COLOURS[number % len(COLOURS)] for number, role in enumerate(roles)}


def role_of(task: Task) -> str:
    """The role of a task, from its id, such as `every-10/actor.log_probs#2`; without a role, its
    name."""
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
    left, right = (_x_position(max(0.0, min(seconds, at)), seconds) for at in (bar.begin, bar.end))
    is_critical = task.id in critical
    about = (
        f"{task.id}, step {bar.iteration + 1}: {format_time(task.seconds)}"
        f"{', makes steps as long as they are' if is_critical else ''}"
    )
    name = task.id.rpartition("/")[2]
    texts = (name, name.partition(".")[2])
    text = next((label for label in texts if len(label) * CHARACTER + 8 <= right - left), "")
    return (
        f"<g><title>{escape(about)}</title>"
        f'<rect x="{left:.2f}" y="{top:g}" width="{max(right - left, 0.5):.2f}" height="{ROW}" '
        f'rx="2" fill="{colours[role_of(task)]}" stroke="{INK}" '
        f'stroke-width="{2 if is_critical else 0.5}"/>'
        f'<text x="{left + 4:.2f}" y="{top + ROW / 2 + 4:g}" fill="{INK}">{escape(text)}</text></g>'
    )


def _x_position(at: float, seconds: float) -> float:
    return LABELS + (at / seconds * PLOT if seconds else 0.0)


def _axis(chart: Chart) -> Iterator[str]:
    marks = ticks(chart.seconds, 8)
    bottom = TOP + len(chart.rows) * (ROW + GAP)
    for mark in marks:
        x = _x_position(mark, chart.seconds)
        yield (
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{TOP - 6}" y2="{bottom}" stroke="currentColor" '
            'stroke-opacity="0.2"/>'
            f'<text x="{x:.2f}" y="{TOP - 22}" text-anchor="middle">'
            f"{format_tick(mark, marks)}</text>"
        )
    yield f'<text x="{WIDTH - 2}" y="{TOP - 22}" text-anchor="end">idle</text>'


def _steps(chart: Chart) -> Iterator[str]:
    """Marks at the start of each step."""
    for iteration, begin in chart.begins:
        x = _x_position(begin, chart.seconds)
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
        "thick border: makes steps as long as they are</text>"
    )
