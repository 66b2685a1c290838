"""The checker of schedules finds what is wrong."""

from __future__ import annotations

from dataclasses import replace

from rlhf_planner.pipelines.pipeline import uniform_pipeline
from rlhf_planner.pipelines.schedule import schedule_alone

from .checker import Done, done_in, peaks, problems

PIPELINE = uniform_pipeline("x", [0, 1], 1, 2, 2, activation_bytes=10)
VALID = done_in(schedule_alone(PIPELINE))


def found(done: list[Done], limit: int | None = None) -> str:
    return "; ".join(problems([PIPELINE], done, limit))


def moved(index: int, seconds: float) -> list[Done]:
    each = VALID[index]
    later = each._replace(begin=each.begin + seconds, end=each.end + seconds)
    return [*VALID[:index], later, *VALID[index + 1 :]]


def test_what_is_valid_has_no_problems() -> None:
    """1F1B of two micro-batches: the first stage holds both, the last one at a time."""
    assert not found(VALID, limit=20)
    assert peaks([PIPELINE], VALID) == {0: 20, 1: 10}


def test_what_is_left_out_or_done_twice_is_found() -> None:
    assert "once in each direction" in found(VALID[1:])
    assert "once in each direction" in found([*VALID, VALID[0]])


def test_what_begins_too_early_is_found() -> None:
    for index in range(1, len(VALID)):
        assert "begins before the end of" in found(moved(index, -0.5)) or "at once" in found(
            moved(index, -0.5)
        )


def test_operations_at_once_are_found() -> None:
    assert "at once" in found(moved(0, 0.5))


def test_other_durations_and_devices_are_found() -> None:
    longer = VALID[0]._replace(end=VALID[0].end + 1)
    assert "does not take 1" in found([longer, *VALID[1:]])
    elsewhere = VALID[0]._replace(device=1)
    assert "another device" in found([elsewhere, *VALID[1:]])


def test_more_than_the_limit_is_found() -> None:
    assert "device 0 holds 20 of 15" in found(VALID, limit=15)
    smaller = replace(PIPELINE, activation_bytes=(5, 10))
    assert not list(problems([smaller], VALID, limit=10))
