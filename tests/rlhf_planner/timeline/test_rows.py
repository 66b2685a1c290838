"""What charts of a simulated step show."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.simulation.event_graph import AlikeRanks, PoolRanks, Task
from rlhf_planner.simulation.simulate import simulate
from rlhf_planner.timeline.rows import build_chart, format_tick, format_time, group_label, ticks

from ...depth import examples
from ..simulation.random_tasks import passes_ahead, steps


def ranks(first: int, end: int, pool: str = "gpu") -> tuple[PoolRanks, ...]:
    return (PoolRanks(pool, range(first, end)),)


@settings(max_examples=examples(60))
@given(steps(), passes_ahead)
def test_every_task_is_in_the_rows_of_its_ranks_and_nothing_overlaps(
    tasks: list[Task], ahead: int
) -> None:
    simulation = simulate(tasks, 3, ahead)
    chart = build_chart(simulation)
    for row in chart.rows:
        for one, other in zip(row.bars, row.bars[1:], strict=False):
            assert one.end <= other.begin
    shown = {(bar.task, bar.iteration) for row in chart.rows for bar in row.bars}
    lasting = {
        (number, iteration)
        for iteration in range(3)
        for number, task in enumerate(tasks)
        if task.seconds > 0
    }
    assert lasting <= shown
    assert chart.seconds == simulation.makespan_seconds - min(simulation.begins[0])


def test_rows_are_of_ranks_then_of_what_runs_beside_them() -> None:
    tasks = [
        Task("score", 3),
        Task("verify", 2, resource="sandbox"),
        Task("train", 4, ranks(4, 8)),
        Task("infer", 1, (*ranks(0, 4), *ranks(2, 3, "cpu"))),
    ]
    chart = build_chart(simulate(tasks, 1))
    assert [(row.label, [bar.task for bar in row.bars]) for row in chart.rows] == [
        ("cpu 2, gpu 0-3", [3]),
        ("gpu 4-7", [2]),
        ("sandbox", [1]),
        ("hosts", [0]),
    ]
    assert chart.seconds == 4
    assert [row.idle_share for row in chart.rows] == [0.75, 0.0, None, None]


def test_what_overlaps_beside_the_ranks_gets_rows_of_its_own() -> None:
    chart = build_chart(simulate([Task("x", 3), Task("y", 2), Task("z", 1, after=("y",))], 1))
    assert [(row.label, [bar.task for bar in row.bars]) for row in chart.rows] == [
        ("hosts", [1, 2]),
        ("", [0]),
    ]


def test_late_steps_are_shown_with_what_goes_on_beside_them() -> None:
    """x takes 2 s and y 5 s, on ranks of their own. Step 3 begins at 5, when step 1 is over."""
    tasks = [Task("x", 2, ranks(0, 1)), Task("y", 5, ranks(1, 2))]
    chart = build_chart(simulate(tasks, 4), range(2, 3))
    assert chart.begins == ((2, 0.0),)
    assert chart.seconds == 10
    bars = [(bar.task, bar.iteration, bar.begin, bar.end) for bar in chart.rows[1].bars]
    assert bars == [(1, 1, 0, 5), (1, 2, 5, 10)]


def test_a_group_in_many_parts_is_told_in_short() -> None:
    parts = (*ranks(0, 8), *ranks(16, 24), *ranks(32, 48))
    assert group_label(AlikeRanks(parts, (0,))) == "gpu 0-7, 16-23 and 16 more"


@given(st.floats(1e-6, 1e7), st.integers(2, 12))
def test_times_of_a_scale_are_round_and_not_too_many(seconds: float, most: int) -> None:
    marks = ticks(seconds, most)
    assert 1 <= len(marks) <= most
    assert marks[0] == 0
    assert marks[-1] <= seconds * (1 + 1e-9)
    if len(marks) > 1:
        assert f"{marks[1]:e}"[0] in "125"
        assert seconds / marks[1] < most


def test_times_are_told_in_their_units() -> None:
    assert [format_time(each) for each in (0, 0.34, 12.5, 1205)] == [
        "0 s",
        "340 ms",
        "12.5 s",
        "1,205 s",
    ]
    assert [format_tick(each, (0.0, 0.5, 1.0)) for each in (0.0, 0.5, 1.0)] == [
        "0 s",
        "0.5 s",
        "1 s",
    ]
    assert [format_tick(each, (0.0, 0.2)) for each in (0.0, 0.2)] == ["0 s", "200 ms"]
