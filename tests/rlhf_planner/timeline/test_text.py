"""Charts of plain text."""

from __future__ import annotations

from hypothesis import given, settings

from rlhf_planner.simulation.event_graph import PoolRanks, Task
from rlhf_planner.simulation.simulate import simulate
from rlhf_planner.timeline.rows import build_chart
from rlhf_planner.timeline.text import text_timeline

from ...depth import examples
from ..simulation.random_tasks import steps


def ranks(first: int, end: int) -> tuple[PoolRanks, ...]:
    return (PoolRanks("gpu", range(first, end)),)


def test_a_column_is_what_takes_most_of_its_time() -> None:
    """40 columns of 1 s: x for 20 s on both, then y for 20 s and z for 10 s side by side; w is a
    tenth of a second long, which no column shows."""
    tasks = [
        Task("actor.x", 20, ranks(0, 8)),
        Task("actor.y", 20, ranks(0, 4), ("actor.x",)),
        Task("critic.z", 10, ranks(4, 8), ("actor.x",)),
        Task("w", 0.1, (), ("actor.x",)),
    ]
    drawn = text_timeline(simulate(tasks, 1, passes_ahead=0), width=56)
    assert drawn.splitlines() == [
        "Devices from top to bottom, time from left to right, a letter for each call:",
        "",
        "         |0 s                |20 s                  idle",
        "steps    |1",
        "gpu 0-3  " + 20 * "A" + 20 * "B" + "    0 %",
        "gpu 4-7  " + 20 * "A" + 10 * "C" + 10 * "." + "   25 %",
        "hosts    " + 40 * ".",
        "",
        "A  actor.x   20.0 s  *",
        "B  actor.y   20.0 s  *",
        "C  critic.z  10.0 s",
        "D  w         100 ms  (too short to be drawn)",
        ".  idle",
        "A step takes 40.0 s in the long run. Calls marked * are on the critical path.",
    ]


def test_steps_in_turn_are_in_capitals_and_in_small_letters() -> None:
    drawn = text_timeline(simulate([Task("x", 10, ranks(0, 1))], 3), width=44).splitlines()
    assert drawn[3] == "steps  |1        |2        |3"
    assert drawn[4] == "gpu 0  " + 10 * "A" + 10 * "a" + 10 * "A" + "    0 %"
    assert "Capitals: steps 1, 3, ...; small letters: steps 2, 4, ..." in drawn


@settings(max_examples=examples(60))
@given(steps())
def test_bars_are_as_wide_as_they_are_long(tasks: list[Task]) -> None:
    """To within the columns at their two ends; idle columns likewise."""
    simulation, width = simulate(tasks, 2, passes_ahead=0), 80
    chart = build_chart(simulation)
    lines = text_timeline(simulation, width).splitlines()
    assert all(len(line) <= width for line in lines[2 : 4 + len(chart.rows)])
    margin = lines[3].index("|")
    columns = width - margin - 7
    for row, line in zip(chart.rows, lines[4:], strict=False):
        cells = line[margin:][:columns]
        for bar in row.bars:
            letter = "ABCDEFG"[bar.task]
            found = cells.count(letter.lower() if bar.iteration else letter)
            expected = (bar.end - bar.begin) / (chart.seconds or 1) * columns
            assert abs(found - expected) <= 2


def test_more_calls_than_letters_share_a_sign() -> None:
    tasks = [Task(f"call{number:02}", 1, ranks(0, 1)) for number in range(28)]
    drawn = text_timeline(simulate(tasks, 1, passes_ahead=0), width=100)
    assert "Z  call25" in drawn
    assert "#  call26" in drawn and "#  call27" in drawn


def test_no_tasks_are_a_chart_of_nothing() -> None:
    assert "A step takes 0 s" in text_timeline(simulate([], 1))
