"""A wait is bounded and reports its obstacle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from rlhf_runtime.bounded_wait import BoundedWait


class Clock:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def bounded_wait(
    seconds: float, reported: list[str], check_stop: Callable[[], None] = lambda: None
) -> BoundedWait:
    clock = Clock()
    return BoundedWait(seconds, reported.append, check_stop, 1.0, lambda: clock.now, clock.sleep)


def in_turn(obstacles: Sequence[str]) -> Callable[[], str]:
    left: Iterator[str] = iter(obstacles)
    return lambda: next(left)


def test_without_an_obstacle_it_returns_at_once() -> None:
    reported: list[str] = []
    assert bounded_wait(0.0, reported).until_free(lambda: "") == "" and reported == []


def test_every_obstacle_is_reported_once() -> None:
    reported: list[str] = []
    obstacles = in_turn(["0 of 2", "0 of 2", "1 of 2", ""])
    assert bounded_wait(10.0, reported).until_free(obstacles) == ""
    assert reported == ["0 of 2", "1 of 2"]


def test_an_obstacle_after_the_deadline_is_returned() -> None:
    polls: list[int] = []

    def obstacle() -> str:
        polls.append(1)
        return "an actor"

    assert bounded_wait(3.0, []).until_free(obstacle) == "an actor"
    assert len(polls) == 4


def test_an_exception_of_check_stop_ends_the_wait() -> None:
    def check_stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bounded_wait(1.0, [], check_stop).until_free(lambda: "busy")
