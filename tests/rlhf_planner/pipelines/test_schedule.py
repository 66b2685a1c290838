"""When operations run in given orders, against times that are raised until they fit."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_flow.errors import DoesNotDivide
from rlhf_planner.pipelines.list_schedule import ForwardLimits, list_orders
from rlhf_planner.pipelines.pipeline import (
    Orders,
    Pipeline,
    Workload,
    opposite_pipelines,
    replicate,
    uniform_pipeline,
)
from rlhf_planner.pipelines.priorities import critical_path_first
from rlhf_planner.pipelines.schedule import (
    INFINITY,
    build_schedule,
    end_times,
    update_end_times,
)
from rlhf_sizing.schedules import Operation

from ...depth import examples
from .checker import done_in, peaks, problems
from .random_pipelines import some_pipelines


def raised_times(workload: Workload, orders: Orders) -> list[float] | None:
    """Ends of operations: raised as long as one starts before what it waits for has ended; None if
    that goes on beyond the time of all of them together."""
    ends = list(workload.seconds)
    rules = [(before, number) for number, before in enumerate(workload.predecessors) if before >= 0]
    rules += [pair for order in orders for pair in zip(order, order[1:], strict=False)]
    while max(ends) <= sum(workload.seconds):
        late = [pair for pair in rules if ends[pair[0]] > ends[pair[1]] - workload.seconds[pair[1]]]
        if not late:
            return ends
        for source, number in late:
            ends[number] = max(ends[number], ends[source] + workload.seconds[number])
    return None


@settings(max_examples=examples(80))
@given(some_pipelines(2), st.randoms(use_true_random=False), st.integers(0, 12))
def test_operations_run_as_soon_as_they_may_or_never(
    pipelines: list[Pipeline], random: Random, swaps: int
) -> None:
    """Orders by the way to each operation, with some moves, so that there are deadlocks and
    none."""
    workload = Workload(tuple(pipelines))
    orders: list[list[int]] = [[] for _ in range(workload.num_devices)]
    operations = workload.operations
    for number in sorted(
        range(len(operations)), key=lambda each: (operations[each].micro_batch, each)
    ):
        orders[workload.devices[number]].append(number)
    for _ in range(swaps):
        order = random.choice([each for each in orders if each])
        place = random.randrange(len(order))
        order.insert(random.randrange(len(order)), order.pop(place))
    frozen = tuple(map(tuple, orders))
    schedule, expected = build_schedule(workload, frozen), raised_times(workload, frozen)
    assert (None if schedule is None else list(schedule.ends)) == expected
    if schedule is not None:
        assert not list(problems(pipelines, done_in(schedule), limit=None))
        held = peaks(pipelines, done_in(schedule))
        assert schedule.peak_bytes == tuple(held.get(device, 0) for device in range(len(orders)))


def test_the_bubble_is_the_time_that_no_operation_takes() -> None:
    """Two stages, one micro-batch of 1 s and 2 s: 6 s on each of two devices, 3 s of them busy."""
    workload = Workload((uniform_pipeline("x", [0, 1], 1, 2, 1),))
    schedule = build_schedule(workload, [[0, 3], [1, 2]])
    assert schedule is not None
    assert schedule.makespan_seconds == 6
    assert schedule.bubble_share == pytest.approx(0.5)
    assert schedule.begins == (0, 1, 2, 4)


def test_numbers_of_operations_are_those_of_their_list() -> None:
    pipelines = (uniform_pipeline("x", [0, 1, 2], 1, 2, 2), uniform_pipeline("y", [1, 0], 1, 2, 3))
    workload = Workload(pipelines)
    assert [workload.number(op) for op in workload.operations] == list(range(24))
    assert workload.operations[:6] == (
        Operation(0, 0, 0, False),
        Operation(0, 1, 0, False),
        Operation(0, 2, 0, False),
        Operation(0, 2, 0, True),
        Operation(0, 1, 0, True),
        Operation(0, 0, 0, True),
    )
    assert workload.predecessors[:7] == (-1, 0, 1, 2, 3, 4, -1)
    assert workload.successors[:7] == (1, 2, 3, 4, 5, -1, 7)


def test_opposite_pipelines_fill_the_devices_from_both_ends() -> None:
    """RLHFuse's K1 and K2: 8 stages of the actor beside two replicas of the critic's 4, and 6
    beside 4 on 12 devices."""
    actor, critic = (
        uniform_pipeline("actor", range(8), 1, 2, 4),
        uniform_pipeline("critic", range(4), 1, 2, 2),
    )
    assert [(each.name, each.devices) for each in opposite_pipelines(actor, critic)] == [
        ("actor", (0, 1, 2, 3, 4, 5, 6, 7)),
        ("critic#1", (3, 2, 1, 0)),
        ("critic#2", (7, 6, 5, 4)),
    ]
    six = uniform_pipeline("actor", range(6), 1, 2, 4)
    assert [(each.name, each.devices[0]) for each in opposite_pipelines(six, critic)] == [
        ("actor#1", 0),
        ("actor#2", 6),
        ("critic#1", 3),
        ("critic#2", 7),
        ("critic#3", 11),
    ]


def test_replicas_that_do_not_fill_the_devices_are_refused() -> None:
    with pytest.raises(DoesNotDivide, match="got 2 stages for 3 devices"):
        replicate(uniform_pipeline("critic", [0, 1], 1, 2, 4), 3)


@settings(max_examples=examples(80))
@given(some_pipelines(), st.randoms(use_true_random=False))
def test_times_after_a_change_are_those_of_all_anew(
    pipelines: list[Pipeline], random: Random
) -> None:
    workload = Workload(tuple(pipelines))
    orders = [
        list(order)
        for order in list_orders(workload, critical_path_first(workload), ForwardLimits())
    ]
    ends = end_times(workload, orders)
    assert ends is not None
    order = random.choice([each for each in orders if each])
    place, target = random.randrange(len(order)), random.randrange(len(order))
    first = order[min(place, target)]
    since = ends[first] - workload.seconds[first]
    order.insert(target, order.pop(place))
    nothing = [0.0] * len(ends)
    expected = end_times(workload, orders)
    assert update_end_times(workload, orders, ends, since, nothing, INFINITY) == expected
    if expected is not None:
        most = max(expected)
        assert update_end_times(workload, orders, ends, since, nothing, most) == expected
        assert update_end_times(workload, orders, ends, 0, nothing, most - 1) is None


@pytest.mark.parametrize(
    "stages",
    [
        ((0, 0), (1, 1), (1, 1), (1, 1), 1),
        ((0, 1), (1,), (1, 1), (1, 1), 1),
        ((0, 1), (1, 0), (1, 1), (1, 1), 1),
        ((0, 1), (1, 1), (1, 1), (1, -1), 1),
        ((0, 1), (1, 1), (1, 1), (1, 1), 0),
        ((), (), (), (), 1),
        ((0, 1), (1, 0.0), (1, 1), (1, 1), 1),
        ((0, 1), (1, float("nan")), (1, 1), (1, 1), 1),
    ],
)
def test_impossible_stages_are_refused(stages: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValueError, match="stages of x are impossible"):
        Pipeline("x", *stages)  # type: ignore[arg-type]
