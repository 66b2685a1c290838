"""Pictures of simulated steps."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest
from hypothesis import given, settings

from rlhf_planner.simulation.event_graph import PoolRanks, Task
from rlhf_planner.simulation.simulate import simulate
from rlhf_planner.timeline.svg import COLOURS, INK, LABELS, PLOT, role_name, svg_timeline

from ...depth import examples
from ..simulation.random_tasks import steps

SVG = "{http://www.w3.org/2000/svg}"


def ranks(first: int, end: int) -> tuple[PoolRanks, ...]:
    return (PoolRanks("gpu", range(first, end)),)


def luminance(colour: str) -> float:
    """Relative luminance. Source: WCAG 2.2."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("colour", COLOURS)
def test_text_on_bars_can_be_read(colour: str) -> None:
    """Contrast of 7 to 1, level AAA of WCAG."""
    assert (luminance(colour) + 0.05) / (luminance(INK) + 0.05) >= 7


def bars(drawn: str) -> dict[str, tuple[float, float]]:
    """Left edge and width of each bar, by what it says on hovering."""
    found = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        title, rect = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        assert title is not None and rect is not None and title.text is not None
        found[title.text] = (float(rect.attrib["x"]), float(rect.attrib["width"]))
    return found


def test_bars_stand_where_they_run() -> None:
    tasks = [
        Task("actor.generate", 20, ranks(0, 8)),
        Task("critic.values", 10, ranks(4, 8), ("actor.generate",)),
        Task("actor.train", 20, ranks(0, 4), ("actor.generate",)),
    ]
    drawn = svg_timeline(simulate(tasks, 1, passes_ahead=0))
    assert bars(drawn) == {
        "actor.generate, step 1: 20.0 s, on the critical path": (LABELS, PLOT / 2),
        "critic.values, step 1: 10.0 s": (LABELS + PLOT / 2, PLOT / 4),
        "actor.train, step 1: 20.0 s, on the critical path": (
            LABELS + PLOT / 2,
            PLOT / 2,
        ),
    }
    texts = [each.text for each in ElementTree.fromstring(drawn).iter(f"{SVG}text")]
    assert {"gpu 0-3", "gpu 4-7", "actor.generate", "25%", "actor", "critic"} <= set(texts)


@settings(max_examples=examples(40))
@given(steps())
def test_it_is_one_element_that_needs_nothing_else(tasks: list[Task]) -> None:
    drawn = svg_timeline(simulate(tasks, 2))
    assert ElementTree.fromstring(drawn).tag == f"{SVG}svg"
    without_name = drawn.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert not any(word in without_name for word in ("http", "href", "url(", "<script", "<style"))


def test_names_are_text_and_no_markup() -> None:
    drawn = svg_timeline(simulate([Task("a<b>&.c", 1, ranks(0, 1))], 1))
    assert "a<b>" not in drawn
    (about,) = bars(drawn)
    assert about.startswith("a<b>&.c, step 1")


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("actor.generate#2", "actor"),
        ("every-10/reference.log_probs", "reference"),
        ("compute#3", "compute"),
    ],
)
def test_a_calls_colour_is_that_of_its_role(name: str, role: str) -> None:
    assert role_name(Task(name, 1)) == role
