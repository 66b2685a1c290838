"""Line charts and stacked columns as HTML around SVG. Pure: data in, text out.

A plot is an SVG of EXTENT x EXTENT units that the page stretches; its lines keep their width, and
all words and numbers are HTML next to it, so that charts stay crisp at any size. The data of the
page's read-outs are returned next to the markup.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from rlhf_runtime.telemetry.metric_names import format_value
from rlhf_runtime.telemetry.metric_table import Format
from rlhf_runtime.telemetry.plots import (
    EXTENT,
    Point,
    Scale,
    byte_label,
    byte_ticks,
    finite,
    fit_scale,
    integer_ticks,
    nice_ticks,
    runs,
    smooth,
    step_scale,
    thin,
    tick_label,
)

# Minimum points of a series that is drawn faintly, with its running mean on top.
SMOOTH_FROM = 30
# Maximum points of a series with dots; more would overlap.
MAX_DOTS = 60


@dataclass(frozen=True)
class Series:
    """One line."""

    name: str
    points: Sequence[Point]
    colour: int = 0
    dots: bool = False
    """True: draw a dot per point, for few values, such as evaluations."""
    smoothed: bool = True
    """True: draw the running mean of a long series."""


@dataclass(frozen=True)
class LineChart:
    """Lines over steps."""

    title: str
    unit: str
    description: str
    format: Format
    series: Sequence[Series]
    steps: tuple[int, int]
    """First and last step of the axis."""
    floor: float | None = None
    """A value that the axis always shows, such as 0."""
    large: bool = False


@dataclass(frozen=True)
class Columns:
    """Stacked columns over steps: each column is the mean of a range of steps."""

    title: str
    layers: Mapping[str, Sequence[float]]
    """By layer, from bottom to top: a value per column."""
    ranges: Sequence[tuple[int, int]]
    """First and last step of each column."""
    colours: Mapping[str, int]
    totals: Mapping[str, float]
    """By layer: the value in the legend."""
    format: Format


@dataclass(frozen=True)
class Piece:
    """A part of the page, with the data of its read-outs."""

    html: str
    data: Mapping[str, Any]


def line_chart(chart: LineChart, limit: int = 800) -> Piece:
    """Draw lines; at most about `limit` points of each."""
    kept = [thin(series.points, limit) for series in chart.series]
    x = step_scale(*chart.steps)
    y = fit_scale((value for points in kept for _, value in points), chart.floor)
    lines = [
        _line(series, points, x, y, limit)
        for series, points in zip(chart.series, kept, strict=True)
    ]
    gaps = [_gap_marks(points, x) for points in kept]
    head = _head(chart.title, chart.unit, _last_value(chart))
    legend = _legend([(s.name, s.colour, "") for s in chart.series]) if len(kept) > 1 else ""
    body = _plot("".join(lines + gaps), x, y, chart.format)
    label = escape(_spoken(chart), quote=True)
    size = " large" if chart.large else ""
    note = f'<p class="note">{escape(chart.description)}</p>' if chart.description else ""
    html = (
        f'<figure class="chart lines{size}" tabindex="0" role="img" aria-label="{label}">'
        f"{head}{body}{legend}{note}</figure>"
    )
    return Piece(html, _line_data(chart, kept, x))


def columns_chart(chart: Columns) -> Piece:
    """Draw stacked columns."""
    count = len(chart.ranges)
    sums = [math.fsum(layer[i] for layer in chart.layers.values()) for i in range(count)]
    y = fit_scale(sums, 0.0)
    # A column spans its steps: the axis ends after the last one.
    x = step_scale(chart.ranges[0][0], chart.ranges[-1][1] + 1)
    marks = "".join(_column(chart, index, count, y) for index in range(count))
    entries = [
        (name, chart.colours[name], format_value(chart.totals[name], chart.format))
        for name in chart.layers
    ]
    first, last = chart.ranges[0][0], chart.ranges[-1][1]
    label = escape(
        f"{chart.title}, steps {first} to {last}; in all "
        + ", ".join(f"{name} {total}" for name, _, total in entries),
        quote=True,
    )
    html = (
        f'<figure class="chart columns large" tabindex="0" role="img" aria-label="{label}">'
        f"{_head(chart.title, 's per step', '')}{_plot(marks, x, y, chart.format, centre=0.5)}"
        f"{_legend(entries)}</figure>"
    )
    layers = [
        {"n": name, "c": chart.colours[name], "y": [_short(v) for v in values]}
        for name, values in chart.layers.items()
    ]
    return Piece(html, {"f": chart.format.value, "r": list(chart.ranges), "l": layers})


def _line(series: Series, points: Sequence[Point], x: Scale, y: Scale, limit: int) -> str:
    smoothed = series.smoothed and not series.dots and len(finite(series.points)) >= SMOOTH_FROM
    marks = []
    for run in runs(points):
        style = "raw" if smoothed else "line"
        marks.append(f'<path class="{style} k{series.colour}" d="{_path(run, x, y)}"/>')
    if smoothed:
        # A smooth curve needs fewer points.
        curve = thin(smooth(series.points), max(40, limit // 3))
        marks.append(f'<path class="line k{series.colour}" d="{_path(curve, x, y)}"/>')
    if (series.dots and len(points) <= MAX_DOTS) or len(finite(points)) == 1:
        dots = "".join(
            f"M{x.at(step):.1f} {EXTENT - y.at(value):.1f}h0" for step, value in finite(points)
        )
        marks.append(f'<path class="dots k{series.colour}" d="{dots}"/>')
    return "".join(marks)


def _path(points: Sequence[Point], x: Scale, y: Scale) -> str:
    # SVG's y axis points down.
    pairs = [f"{x.at(step):.1f} {EXTENT - y.at(value):.1f}" for step, value in points]
    # A single point is a segment without length, which round line caps make visible.
    return "M" + pairs[0] + ("L" + " ".join(pairs[1:]) if len(pairs) > 1 else "h0")


def _gap_marks(points: Sequence[Point], x: Scale) -> str:
    marks = "".join(
        f"M{x.at(step):.1f} {EXTENT:.0f}v-60" for step, v in points if not math.isfinite(v)
    )
    # A short mark on the axis at every step without a number.
    return f'<path class="gap" d="{marks}"/>' if marks else ""


def _column(chart: Columns, index: int, count: int, y: Scale) -> str:
    width = EXTENT / count
    gap = width * 0.14
    marks, bottom = [], 0.0
    for name, values in chart.layers.items():
        top = bottom + max(0.0, values[index])
        height = y.at(top) - y.at(bottom)
        if height > 0:
            marks.append(
                f'<rect class="f{chart.colours[name]}" x="{index * width + gap / 2:.2f}" '
                f'y="{EXTENT - y.at(top):.1f}" width="{width - gap:.2f}" height="{height:.1f}"/>'
            )
        bottom = top
    return "".join(marks)


def _plot(marks: str, x: Scale, y: Scale, style: Format, centre: float = 0.0) -> str:
    """The plot with grid and axes; `centre` shifts step labels to the middle of their column."""
    ticks = byte_ticks(y) if style is Format.BYTES else nice_ticks(y)
    label = _tick_labels(ticks, style)
    grid = "".join(f"M0 {EXTENT - y.at(tick):.1f}H{EXTENT:.0f}" for tick in ticks)
    rows = "".join(
        f'<span style="bottom:{y.percent(tick):.2f}%">{escape(label(tick))}</span>'
        for tick in ticks
    )
    steps = "".join(
        f'<span style="left:{x.percent(tick + centre):.2f}%">{_step_label(tick)}</span>'
        for tick in integer_ticks(x)
        if x.percent(tick + centre) <= 100
    )
    wide = " bytes" if style is Format.BYTES else ""
    return (
        f'<div class="plot{wide}"><div class="y" aria-hidden="true">{rows}</div><div class="area">'
        f'<svg viewBox="0 0 {EXTENT:.0f} {EXTENT:.0f}" preserveAspectRatio="none" '
        f'aria-hidden="true" focusable="false"><path class="rule" d="{grid}"/>{marks}</svg>'
        f'<i class="cursor"></i></div><div class="x" aria-hidden="true">{steps}</div></div>'
    )


def _step_label(step: int) -> str:
    return f"{step / 1000:g}k" if step >= 10_000 else f"{step:,}"


def _tick_labels(ticks: tuple[float, ...], style: Format) -> Callable[[float], str]:
    if style is Format.BYTES:
        return lambda tick: byte_label(tick, ticks)
    return lambda tick: tick_label(tick, ticks)


def _head(title: str, unit: str, value: str) -> str:
    shown = f'<small class="unit">{escape(unit)}</small>' if unit else ""
    return (
        f"<figcaption><h3>{escape(title)} {shown}</h3>"
        f'<output class="value">{escape(value)}</output></figcaption>'
    )


def _legend(entries: Sequence[tuple[str, int, str]]) -> str:
    items = "".join(
        f'<li><i class="b{colour}"></i>{escape(name)}'
        + (f" <b>{escape(value)}</b>" if value else "")
        + "</li>"
        for name, colour, value in entries
    )
    return f'<ul class="legend">{items}</ul>'


def _last_value(chart: LineChart) -> str:
    if len(chart.series) != 1:
        return ""
    numbers = finite(chart.series[0].points)
    return format_value(numbers[-1][1], chart.format) if numbers else "no value"


def _spoken(chart: LineChart) -> str:
    """The chart in words, for screen readers."""
    parts = [chart.title if not chart.unit else f"{chart.title} in {chart.unit}"]
    for series in chart.series:
        numbers = finite(series.points)
        if not numbers:
            continue
        first, last = numbers[0], numbers[-1]
        name = f"{series.name}: " if len(chart.series) > 1 else ""
        parts.append(
            f"{name}{format_value(first[1], chart.format)} at step {first[0]}, "
            f"{format_value(last[1], chart.format)} at step {last[0]}, between "
            f"{format_value(min(v for _, v in numbers), chart.format)} and "
            f"{format_value(max(v for _, v in numbers), chart.format)}"
        )
    return "; ".join(parts)


def _line_data(chart: LineChart, kept: Sequence[Sequence[Point]], x: Scale) -> dict[str, Any]:
    series = [
        {
            # Short keys, as they repeat for every series; report.js reads them.
            "n": line.name,
            "c": line.colour,
            "x": [step for step, _ in points],
            "y": [_short(value) for _, value in points],
        }
        for line, points in zip(chart.series, kept, strict=True)
    ]
    return {"f": chart.format.value, "x": [x.low, x.high], "s": series}


def _short(value: float) -> float | None:
    """The value with five significant digits. None: it is not finite."""
    # Fewer digits keep the page small.
    return float(f"{value:.5g}") if math.isfinite(value) else None
