"""Charts hold the points they were given, as well-formed SVG."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

from rlhf_runtime.telemetry.charts import Columns, LineChart, Series, columns_chart, line_chart
from rlhf_runtime.telemetry.metric_table import Format
from rlhf_runtime.telemetry.plots import EXTENT, Point


def a_chart(points: list[Point], **changes: object) -> LineChart:
    values: dict[str, object] = {
        "title": "A & B",
        "unit": "nats",
        "description": "What it <means>",
        "format": Format.NUMBER,
        "series": [Series("x", points)],
        "steps": (points[0][0], points[-1][0]) if points else (0, 1),
    }
    return LineChart(**(values | changes))  # type: ignore[arg-type]


def svg(html: str) -> ElementTree.Element:
    found = re.search(r"<svg.*?</svg>", html, re.DOTALL)
    assert found is not None
    return ElementTree.fromstring(found[0])


def coordinates(path: ElementTree.Element) -> list[tuple[float, float]]:
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*", path.attrib["d"].replace("h0", ""))]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


def test_a_line_has_a_point_for_every_value_in_place() -> None:
    html = line_chart(a_chart([(0, 0.0), (5, 1.0), (10, 0.5)])).html
    (line,) = svg(html).findall("path[@class='line k0']")
    points = coordinates(line)
    assert [x for x, _ in points] == [0.0, 500.0, 1000.0]
    low, high, middle = (y for _, y in points)
    assert 0 < high < middle < low < EXTENT
    assert abs((low + high) / 2 - middle) < 0.2


def test_long_series_are_drawn_thin_and_smooth() -> None:
    piece = line_chart(a_chart([(step, float(step % 7)) for step in range(5000)]), limit=100)
    (raw,) = svg(piece.html).findall("path[@class='raw k0']")
    (line,) = svg(piece.html).findall("path[@class='line k0']")
    assert 90 <= len(coordinates(raw)) <= 102
    assert len(coordinates(line)) <= 102
    assert len(piece.data["s"][0]["x"]) == len(coordinates(raw))


def test_dots_mark_every_evaluation() -> None:
    points = [(0, 0.1), (25, 0.5), (50, 0.9)]
    html = line_chart(a_chart(points, series=[Series("x", points, 2, dots=True)])).html
    (dots,) = svg(html).findall("path[@class='dots k2']")
    assert dots.attrib["d"].count("M") == 3


def test_values_that_are_not_finite_leave_a_gap_and_a_mark() -> None:
    piece = line_chart(a_chart([(1, 1.0), (2, 2.0), (3, math.nan), (4, 3.0), (5, 4.0)]))
    picture = svg(piece.html)
    assert len(picture.findall("path[@class='line k0']")) == 2
    (gap,) = picture.findall("path[@class='gap']")
    assert gap.attrib["d"].count("M") == 1
    assert piece.data["s"][0]["y"] == [1.0, 2.0, None, 3.0, 4.0]
    assert "NaN" not in piece.html


def test_a_series_without_any_finite_value_is_still_a_chart() -> None:
    html = line_chart(a_chart([(1, math.nan), (2, math.inf)])).html
    assert svg(html) is not None
    assert "no value" in html


def test_words_are_escaped_and_the_chart_says_itself_in_words() -> None:
    html = line_chart(a_chart([(1, 0.5), (2, 0.25)])).html
    assert "What it &lt;means&gt;" in html
    label = re.search(r'aria-label="([^"]*)"', html)
    assert label is not None
    assert label[1] == (
        "A &amp; B in nats; 0.5000 at step 1, 0.2500 at step 2, between 0.2500 and 0.5000"
    )


def test_columns_stack_to_their_sum() -> None:
    chart = Columns(
        title="Time",
        layers={"generate": [1.0, 2.0], "train": [3.0, 0.0]},
        ranges=[(1, 1), (2, 2)],
        colours={"generate": 0, "train": 1},
        totals={"generate": 3.0, "train": 3.0},
        format=Format.SECONDS,
    )
    piece = columns_chart(chart)
    rects = svg(piece.html).findall("rect")
    assert [rect.attrib["class"] for rect in rects] == ["f0", "f1", "f0"]
    heights = [float(rect.attrib["height"]) for rect in rects]
    assert abs(heights[1] - 3 * heights[0]) < 0.5
    assert abs(heights[2] - 2 * heights[0]) < 0.5
    bottom, top = rects[0], rects[1]
    assert abs(float(top.attrib["y"]) + heights[1] - float(bottom.attrib["y"])) < 0.2
    assert piece.data["l"][0] == {"n": "generate", "c": 0, "y": [1.0, 2.0]}
