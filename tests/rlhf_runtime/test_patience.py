"""Waiting is bounded and told."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest

from rlhf_runtime.patience import Patience


class Clock:
    """Time passes only in sleep."""

    def __init__(self) -> None:
        self.now = 0.0

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def patience(
    seconds: float, told: list[str], check_stop: Callable[[], None] = lambda: None
) -> Patience:
    clock = Clock()
    return Patience(seconds, told.append, check_stop, 1.0, lambda: clock.now, clock.sleep)


def in_turn(obstacles: Sequence[str]) -> Callable[[], str]:
    left: Iterator[str] = iter(obstacles)
    return lambda: next(left)


def test_nothing_in_the_way_is_not_waited_for() -> None:
    told: list[str] = []
    assert patience(0.0, told).until_free(lambda: "") == "" and told == []


def test_each_obstacle_is_told_once() -> None:
    told: list[str] = []
    obstacles = in_turn(["0 of 2", "0 of 2", "1 of 2", ""])
    assert patience(10.0, told).until_free(obstacles) == ""
    assert told == ["0 of 2", "1 of 2"]


def test_what_is_in_the_way_for_too_long_is_returned() -> None:
    looks: list[int] = []

    def obstacle() -> str:
        looks.append(1)
        return "an actor"

    assert patience(3.0, []).until_free(obstacle) == "an actor"
    assert len(looks) == 4


def test_a_wish_to_stop_ends_the_wait() -> None:
    def check_stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patience(1.0, [], check_stop).until_free(lambda: "busy")
