"""Inter-stage fusion, by hand and against a simulation second by second."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_flow.planning.stage_fusion.migration import (
    Generation,
    Inference,
    Migration,
    best_migration,
)


def one_second(running: float, cached_tokens: float) -> float:
    return 1.0


GENERATION = Generation(
    prompt_tokens=0,
    response_tokens=(1, 1, 10, 3),
    num_engines=2,
    concurrent_rows=4,
    cache_tokens=100,
    step_seconds=one_second,
    migration_token_seconds=0,
)
"""Engine 0 has the rows of 1 and 10 tokens, engine 1 those of 1 and 3."""


def test_without_fusion_stages_follow_each_other() -> None:
    """10 s, then 15 tokens on the devices of two engines."""
    found = best_migration(GENERATION, Inference(1), thresholds=[])
    assert found == Migration(0, 2, 10, 10, 17.5, 17.5)
    assert found.speed_up == 1


def test_freed_devices_infer_while_the_tail_is_generated() -> None:
    """At 3 s the row of 10 is left; 5 tokens take until 8; its own 10 from 10 to 15 on both."""
    found = best_migration(GENERATION, Inference(1), thresholds=[1])
    assert found == Migration(1, 1, 3, 10, 15, 17.5)


def test_the_smallest_of_equal_thresholds_is_taken() -> None:
    assert best_migration(GENERATION, Inference(1)).threshold_rows == 1


def test_moved_tokens_delay_the_tail() -> None:
    """At 1 s the row of 3 moves to engine 0 with one token; both go on at 1.5."""
    generation = replace(GENERATION, migration_token_seconds=0.5)
    found = best_migration(generation, Inference(1), thresholds=[2])
    assert found == Migration(2, 1, 1, 10.5, 15.5, 17.5)


def test_devices_take_part_when_they_have_started() -> None:
    """Freed at 3 s and ready at 5, the others at 12: 5 tokens until 10, 2 until 12, then 8 on
    both."""
    found = best_migration(GENERATION, Inference(1, start_seconds=2), thresholds=[1])
    assert found == Migration(1, 1, 3, 10, 16, 19.5)


def test_devices_may_start_for_longer_than_the_tail_takes() -> None:
    """Ready at 11 and at 18: 7 tokens alone, 8 together."""
    found = best_migration(GENERATION, Inference(1, start_seconds=8), thresholds=[1])
    assert found == Migration(1, 1, 3, 10, 22, 25.5)


def test_rows_that_need_all_engines_are_not_moved() -> None:
    for smaller in (
        replace(GENERATION, concurrent_rows=1),
        replace(GENERATION, cache_tokens=12.9),
    ):
        assert best_migration(smaller, Inference(1), thresholds=[2]).threshold_rows == 0
    enough = replace(GENERATION, cache_tokens=13)
    assert best_migration(enough, Inference(1), thresholds=[2]).threshold_rows == 2


def test_what_does_not_pay_is_not_done() -> None:
    """With a slow link, and where there is nothing to infer."""
    slow = replace(GENERATION, migration_token_seconds=100)
    assert best_migration(slow, Inference(1), thresholds=[2]).threshold_rows == 0
    assert best_migration(GENERATION, Inference(0)).threshold_rows == 0


def test_impossible_generations_are_refused() -> None:
    for wrong in ({"response_tokens": ()}, {"response_tokens": (1, 0)}, {"num_engines": 0}):
        with pytest.raises(ValueError, match="a generation is impossible"):
            replace(GENERATION, **wrong)  # type: ignore[arg-type]


def second_by_second(
    lengths: list[int], engines: int, start: int, threshold: int, remaining: int
) -> float:
    """Every engine has room for all; a token of every row, and of inference, takes a second.
    Threshold 0: no fusion."""
    left, now, backlog, trigger = list(lengths), 0, 0.0, -1
    while any(left):
        if threshold and trigger < 0 and sum(each > 0 for each in left) <= threshold:
            trigger = now
        if trigger >= 0 and now >= trigger + start:
            backlog -= min(backlog, engines - remaining)
        now += 1
        for index, each in enumerate(left):
            left[index] = max(0, each - 1)
            if each == 1:
                backlog += lengths[index]
    end = now
    time = float(end)
    while backlog > 0:
        devices = engines - remaining if trigger >= 0 and time >= trigger + start else 0
        devices += remaining if time >= end + start else 0
        if devices and backlog <= devices:
            return time + backlog / devices
        backlog -= devices
        time += 1
    return time


@given(
    st.lists(st.integers(1, 12), min_size=2, max_size=10),
    st.integers(2, 4),
    st.integers(0, 5),
    st.integers(1, 9),
)
def test_second_by_second_it_takes_as_long(
    lengths: list[int], engines: int, start: int, threshold: int
) -> None:
    """Thresholds at which several rows end at once are left out: rows that end there have nothing
    left to generate."""
    generation = Generation(0, tuple(lengths), engines, len(lengths), 1e9, one_second, 0)
    inference = Inference(1, start)
    serial = second_by_second(lengths, engines, start, 0, engines)
    found = best_migration(generation, inference, [threshold])
    assert found.serial_seconds == pytest.approx(serial)
    if 0 < threshold < len(lengths):
        expected = second_by_second(lengths, engines, start, threshold, 1)
        in_order = sorted(lengths)
        if in_order[-threshold] > in_order[-threshold - 1]:
            assert found.seconds == pytest.approx(min(expected, serial))
    assert found.seconds >= (sum(lengths) / engines)


@given(
    st.lists(st.floats(1, 50), min_size=2, max_size=30),
    st.integers(1, 5),
    st.integers(1, 12),
    st.floats(0, 3),
    st.floats(0, 0.1),
)
def test_the_best_of_all_thresholds_is_found_and_is_never_longer_than_without(
    lengths: list[float], engines: int, concurrent: int, token_seconds: float, moving: float
) -> None:
    generation = Generation(
        5,
        tuple(lengths),
        engines,
        concurrent,
        200,
        lambda running, cached: 1 + 0.1 * running + 0.001 * cached,
        moving,
    )
    inference = Inference(token_seconds, 2.0)
    best = best_migration(generation, inference)
    each = [best_migration(generation, inference, [threshold]) for threshold in range(len(lengths))]
    assert best.seconds == min(one.seconds for one in each)
    assert best.seconds <= best.serial_seconds
    assert best.trigger_seconds <= best.generation_seconds <= best.seconds
    work = token_seconds * (sum(lengths) + 5 * len(lengths))
    assert best.seconds >= work / engines


def test_of_many_rows_thresholds_are_tried_in_two_rounds() -> None:
    """One row of 500 is long: the best threshold is 1, far below the first one of 7 or 8."""
    lengths = (*[10.0] * 499, 500.0)
    generation = replace(GENERATION, response_tokens=lengths, concurrent_rows=300, cache_tokens=1e6)
    slow = replace(generation, migration_token_seconds=1.0)
    best = best_migration(slow, Inference(0.1))
    every = [best_migration(slow, Inference(0.1), [each]) for each in range(500)]
    assert best.threshold_rows == 1
    assert best.seconds == min(one.seconds for one in every)
