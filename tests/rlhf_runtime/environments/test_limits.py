"""Limits of a conversation's time, with a clock that only the process moves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from rlhf_runtime.environments.limits import ActionFailed, TimedRequests
from rlhf_runtime.environments.process_handle import TooLate
from rlhf_runtime.environments.results import FailureKind
from rlhf_runtime.environments.settings import EnvironmentSettings

SETTINGS = EnvironmentSettings(
    call_seconds=2.0, turn_seconds=4.0, episode_seconds=10.0, parallel_calls=8, concurrency=32
)


class Clock:
    """The event loop's time."""

    now = 100.0

    def time(self) -> float:
        return self.now


class Process:
    """Answers after some seconds, or too late."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.seconds_left: list[float] = []
        self.duration = 0.0
        self.late_call: int | None = None

    async def request(
        self,
        message: dict[str, Any],
        deadline: float,
        call_seconds: float,
        calls: Sequence[int],
        on_answer: Callable[..., None],
    ) -> dict[str, Any]:
        self.seconds_left.append(deadline - self.clock.now)
        self.clock.now += self.duration
        if self.late_call is not None or self.clock.now > deadline:
            raise TooLate(self.late_call)
        return {}


@pytest.fixture
def process() -> Process:
    return Process(Clock())


def send(process: Process, requests: TimedRequests, duration: float) -> None:
    """Make a call that takes some seconds."""

    async def main() -> None:
        asyncio.get_running_loop().time = process.clock.time  # type: ignore[method-assign]
        process.duration = duration
        calls = [(0, "add", {"a": 1})]
        await requests.act(process, 1, calls, lambda number, answer: None)  # type: ignore[arg-type]

    asyncio.run(main())


def failure(process: Process, requests: TimedRequests, duration: float) -> ActionFailed:
    with pytest.raises(ActionFailed) as raised:
        send(process, requests, duration)
    return raised.value


def test_only_time_in_the_environment_counts(process: Process) -> None:
    requests = TimedRequests(SETTINGS)
    for duration in (3.0, 4.0, 2.0):
        send(process, requests, duration)
        process.clock.now += 1000  # the model generates
    assert process.seconds_left == [4.0, 4.0, 3.0] and requests.spent == 9.0
    failed = failure(process, requests, 1.5)
    assert process.seconds_left[-1] == 1.0
    assert (failed.kind, failed.is_final) == (FailureKind.EPISODE_DEADLINE, True)


def test_a_turn_and_a_call_have_limits_of_their_own(process: Process) -> None:
    turn = failure(process, TimedRequests(SETTINGS), 5.0)
    process.late_call = 0
    call = failure(process, TimedRequests(SETTINGS), 2.5)
    assert (turn.kind, turn.is_final) == (FailureKind.TOOL_DEADLINE, True)
    assert turn.detail == "the calls of a turn took longer than turnSeconds = 4"
    assert (call.kind, call.is_final) == (FailureKind.TOOL_DEADLINE, True)
    assert call.detail == 'the call add({"a": 1}) took longer than callSeconds = 2'


def test_the_time_of_a_rebuild_is_not_the_conversations(process: Process) -> None:
    requests = TimedRequests(SETTINGS, is_rebuild=True)
    for _ in range(4):
        send(process, requests, 4.0)
    assert process.seconds_left == [4.0] * 4
    failed = failure(process, requests, 5.0)
    assert (failed.kind, failed.is_final) == (FailureKind.TOOL_DEADLINE, None)
