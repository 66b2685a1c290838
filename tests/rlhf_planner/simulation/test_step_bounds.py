"""What a step takes at least, against what it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.simulation.event_graph import PoolRanks, Task

from ...depth import examples
from .random_tasks import passes_ahead, steps
from .step_bounds import step_lower_bound, step_seconds


def ranks(first: int, end: int) -> tuple[PoolRanks, ...]:
    return (PoolRanks("a", range(first, end)),)


@settings(max_examples=examples(60))
@given(steps(), passes_ahead)
def test_no_step_is_shorter(tasks: list[Task], ahead: int) -> None:
    assert step_lower_bound(tasks, ahead) <= step_seconds(tasks, ahead) + 1e-9


@st.composite
def in_other_orders(draw: st.DrawFn) -> tuple[list[Task], list[Task]]:
    """The tasks of a step, and the same in another order that their dependencies allow."""
    tasks = draw(steps())
    waiting, ordered = list(tasks), list[Task]()
    while waiting:
        done = {task.id for task in ordered}
        ready = [task for task in waiting if done.issuperset(task.after)]
        ordered.append(draw(st.sampled_from(ready)))
        waiting.remove(ordered[-1])
    return tasks, ordered


@settings(max_examples=examples(60))
@given(in_other_orders(), passes_ahead)
def test_it_holds_for_any_order(orders: tuple[list[Task], list[Task]], ahead: int) -> None:
    tasks, other = orders
    assert step_lower_bound(tasks, ahead) == pytest.approx(step_lower_bound(other, ahead))
    assert step_lower_bound(tasks, ahead) <= step_seconds(other, ahead) + 1e-9


@settings(max_examples=examples(60))
@given(steps(), passes_ahead, st.data())
def test_it_grows_with_what_tasks_take(tasks: list[Task], ahead: int, data: st.DataObject) -> None:
    longer = [replace(t, seconds=t.seconds + data.draw(st.integers(0, 3))) for t in tasks]
    assert step_lower_bound(tasks, ahead) <= step_lower_bound(longer, ahead) + 1e-9


def pipeline(first: Sequence[PoolRanks], second: Sequence[PoolRanks]) -> list[Task]:
    """4 s, then 3 s and 2 s side by side, then 1 s."""
    return [
        Task("a", 4, tuple(first)),
        Task("b", 3, tuple(first), ("a",)),
        Task("c", 2, tuple(second), ("a",)),
        Task("d", 1, tuple(first), ("b", "c")),
    ]


@pytest.mark.parametrize(("ahead", "least"), [(0, 10), (1, 10)])
def test_it_is_the_sum_on_the_same_ranks(ahead: int, least: float) -> None:
    assert step_lower_bound(pipeline(ranks(0, 2), ranks(0, 2)), ahead) == least


def test_it_is_the_work_of_the_busiest_ranks() -> None:
    assert step_lower_bound(pipeline(ranks(0, 1), ranks(1, 2))) == 8


def test_it_is_the_longest_chain_of_a_pass_that_is_waited_for() -> None:
    apart = [replace(task, ranks=ranks(n, n + 1)) for n, task in enumerate(pipeline((), ()))]
    assert step_lower_bound(apart, passes_ahead=0) == 8
    assert step_lower_bound(apart, passes_ahead=1) == 4


def test_it_is_the_longest_chain_into_the_next_pass() -> None:
    """d's weights are a's of the next pass: 4 + 3 + 1."""
    tasks = pipeline((), ())
    tasks[0] = replace(tasks[0], after_previous=("d",))
    assert step_lower_bound(tasks, passes_ahead=5) == 8


def test_ranks_stand_still_before_their_first_task_and_after_their_last() -> None:
    """b and c share ranks: 4 + (3 + 2) + 1, where the longest chain is 4 + 3 + 1."""
    tasks = [
        Task("a", 4),
        Task("b", 3, ranks(0, 1), ("a",)),
        Task("c", 2, ranks(0, 1), ("a",)),
        Task("d", 1, (), ("b", "c")),
    ]
    assert step_lower_bound(tasks, passes_ahead=0) == 10
    assert step_lower_bound(tasks, passes_ahead=1) == 5


def test_a_resource_counts_like_ranks() -> None:
    tasks = [Task("a", 4, resource="host"), Task("b", 3, resource="host")]
    assert step_lower_bound(tasks) == 7
