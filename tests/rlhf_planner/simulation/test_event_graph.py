"""Groups of ranks, and what tasks wait for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from rlhf_flow.errors import FlowError
from rlhf_planner.simulation.event_graph import Cause, PoolRanks, Task, event_graph, rank_groups

from ...depth import examples
from .naive_simulation import requested_placement
from .random_tasks import steps


def ranks(first: int, end: int, pool: str = "a") -> tuple[PoolRanks, ...]:
    return (PoolRanks(pool, range(first, end)),)


@settings(max_examples=examples(60))
@given(steps())
def test_every_rank_is_in_one_group_that_names_its_tasks(tasks: list[Task]) -> None:
    tasks_of_rank: dict[tuple[str, int], list[int]] = {}
    for number, task in enumerate(tasks):
        for place in requested_placement(replace(task, resource=None)):
            assert not isinstance(place, str)
            tasks_of_rank.setdefault(place, []).append(number)
    groups = rank_groups(tasks)
    found = {
        (pool, rank): list(group.tasks)
        for group in groups
        for pool, part in group.ranks
        for rank in part
    }
    assert found == tasks_of_rank
    assert sum(group.num_ranks for group in groups) == len(tasks_of_rank)
    assert len({group.tasks for group in groups}) == len(groups)


def test_neighbours_that_run_the_same_are_one_part_of_a_group() -> None:
    tasks = [Task("x", 1, ranks(0, 4)), Task("y", 1, ranks(2, 6)), Task("z", 1, ranks(2, 4))]
    assert [(group.ranks, group.tasks) for group in rank_groups(tasks)] == [
        (ranks(0, 2), (0,)),
        (ranks(2, 4), (0, 1, 2)),
        (ranks(4, 6), (1,)),
    ]


def test_ranks_apart_that_run_the_same_are_one_group() -> None:
    tasks = [Task("x", 1, (*ranks(0, 1), *ranks(5, 7), *ranks(0, 2, "b")))]
    (group,) = rank_groups(tasks)
    assert group.ranks == (*ranks(0, 1), *ranks(5, 7), *ranks(0, 2, "b"))
    assert group.num_ranks == 5


def test_a_rank_runs_tasks_as_they_were_sent_and_begins_again() -> None:
    graph = event_graph([Task("x", 1, ranks(0, 1)), Task("y", 1, ranks(0, 1))])
    assert dict(graph.arcs[0]) == {(1, 1): Cause.RANKS, (2, 2): Cause.DRIVER}
    assert dict(graph.arcs[1]) == {(0, 0): Cause.RANKS}
    assert dict(graph.arcs[2]) == {(1, 0): Cause.DRIVER, (2, 1): Cause.DRIVER}


def test_what_is_read_counts_before_shared_ranks() -> None:
    tasks = [Task("x", 1, ranks(0, 1)), Task("y", 1, ranks(0, 1), after=("x",))]
    assert event_graph(tasks).arcs[1][0, 0] is Cause.INPUT


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ([Task("x", 1), Task("x", 1)], "two tasks have one id"),
        ([Task("x", 1, after=("y",)), Task("y", 1)], "x waits for what is not there or is sent"),
        ([Task("x", 1, after=("x",))], "allowed nothing"),
        ([Task("x", 1, after_previous=("z",))], "the iteration before does not have: got z"),
        ([Task("x", -1.0)], "got -1.0 s for x"),
        ([Task("x", float("nan"))], "no duration"),
        ([Task("x", float("inf"))], "no duration"),
    ],
)
def test_tasks_that_cannot_be_are_refused(tasks: list[Task], message: str) -> None:
    with pytest.raises(FlowError, match=message):
        event_graph(tasks)
