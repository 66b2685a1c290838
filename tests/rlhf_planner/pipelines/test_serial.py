"""1F1B, against its formulas."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_planner.pipelines.pipeline import (
    Pipeline,
    Workload,
    opposite_pipelines,
    uniform_pipeline,
)
from rlhf_planner.pipelines.schedule import (
    build_schedule,
    schedule_alone,
    serial_orders,
    serial_seconds,
    stage_order,
)

from ...depth import examples
from .checker import done_in, problems
from .random_pipelines import limits, some_pipelines


@settings(max_examples=examples(60))
@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 5), st.integers(1, 9))
def test_like_stages_take_what_the_formula_says(
    stages: int, micro_batches: int, forward: int, backward: int
) -> None:
    """(m + p - 1) (f + b); a stage holds min(m, p - stage) micro-batches; the share of the bubble
    is (p - 1) / (m + p - 1)."""
    schedule = schedule_alone(
        uniform_pipeline("x", range(stages), forward, backward, micro_batches, 10)
    )
    rounds = micro_batches + stages - 1
    assert schedule.makespan_seconds == rounds * (forward + backward)
    assert schedule.peak_bytes == tuple(
        10 * min(micro_batches, stages - stage) for stage in range(stages)
    )
    assert schedule.bubble_share == pytest.approx((stages - 1) / rounds)


def test_a_stage_warms_up_takes_turns_and_drains() -> None:
    pipeline = uniform_pipeline("x", range(3), 1, 2, 4)
    orders = [
        " ".join(f"{'B' if back else 'F'}{number}" for _, _, number, back in order)
        for order in (stage_order(pipeline, 0, stage) for stage in range(3))
    ]
    assert orders == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_unlike_stages() -> None:
    """Last stage: forward 1-3, backward 3-7, then 7-9 and 9-13. First: 0-1, 1-2, 7-9, 13-15."""
    pipeline = Pipeline("x", (0, 1), (1, 2), (2, 4), (1, 1), 2)
    schedule = schedule_alone(pipeline)
    assert schedule.makespan_seconds == 15
    assert schedule.begins == (0, 1, 3, 7, 1, 7, 9, 13)


@settings(max_examples=examples(100))
@given(some_pipelines(6), limits, st.booleans())
def test_pipelines_one_after_the_other_are_valid_and_no_slower_than_their_sum(
    pipelines: list[Pipeline], limit: int | None, is_reversed: bool
) -> None:
    workload = Workload(tuple(pipelines))
    schedule = build_schedule(workload, serial_orders(workload, limit, is_reversed))
    assert schedule is not None
    assert not list(problems(pipelines, done_in(schedule), limit))
    alone = [schedule_alone(pipeline, limit).makespan_seconds for pipeline in pipelines]
    assert max(alone) <= serial_seconds(pipelines, limit) <= sum(alone)
    in_turn = pipelines[::-1] if is_reversed else pipelines
    assert schedule.makespan_seconds <= serial_seconds(in_turn, limit)


def test_a_limit_lets_fewer_micro_batches_in_at_first() -> None:
    """Stage 1 has room for one only, so stage 2 takes no more; stage 0 still warms up."""
    pipeline = Pipeline("x", (0, 1, 2), (1, 1, 1), (2, 2, 2), (5, 10, 5), 3)
    orders = [
        " ".join(f"{'B' if back else 'F'}{number}" for _, _, number, back in order)
        for order in (stage_order(pipeline, 0, stage, 19) for stage in range(3))
    ]
    assert orders == ["F0 F1 F2 B0 B1 B2", "F0 B0 F1 B1 F2 B2", "F0 B0 F1 B1 F2 B2"]
    assert schedule_alone(pipeline, 19).peak_bytes == (15, 10, 5)


def test_copies_on_devices_of_their_own_run_at_once() -> None:
    """(4 + 4 - 1) 3 = 21 s of the actor, then (4 + 2 - 1) 3 = 15 s of both critic replicas."""
    actor = uniform_pipeline("actor", range(4), 1, 2, 4)
    critic = uniform_pipeline("critic", range(2), 1, 2, 4)
    assert serial_seconds(opposite_pipelines(actor, critic)) == 21 + 15
