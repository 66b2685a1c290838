"""A worker that computes, hangs or is gone, as the driver sees it."""

from __future__ import annotations

import socket
import threading

import pytest

from rlhf_runtime.workers import activity as module
from rlhf_runtime.workers.activity import (
    Activity,
    ActivityServer,
    ProcessActivity,
    ProgressSignal,
    heartbeat_by_cpu,
    request_status,
)


def test_a_worker_says_what_it_does_while_it_does_it() -> None:
    activity = Activity()
    address = activity.serve("127.0.0.1", "secret")
    before = request_status(address, "secret")
    assert before is not None and before.call == ""
    with activity.during("actor.train", 3):
        activity._since -= 100.0
        still = request_status(address, "secret")
        activity.tick()
        moved = request_status(address, "secret")
    after = request_status(address, "secret")
    activity.close()
    assert still is not None and moved is not None and after is not None
    assert (still.call, still.step) == ("actor.train", 3)
    assert still.seconds >= 100 > moved.seconds >= 0
    assert after.call == ""


@pytest.mark.parametrize(
    ("progress", "efforts", "moves"),
    [
        (ProgressSignal.TICKS, [0.0, 50.0, 100.0], False),
        (ProgressSignal.CPU, [0.0, 50.0, 100.0], True),
        (ProgressSignal.CPU, [0.0, 0.0, 0.0], False),
        (ProgressSignal.OWN_LIMIT, [0.0, 0.0, 0.0], True),
    ],
)
def test_what_counts_as_progress_is_the_calls(
    monkeypatch: pytest.MonkeyPatch, progress: ProgressSignal, efforts: list[float], moves: bool
) -> None:
    given = iter(efforts)
    monkeypatch.setattr(module, "process_activity", lambda: ProcessActivity(next(given), 0))
    activity = Activity()
    with activity.during("build", progress=progress):
        for _ in range(2):
            activity._since -= 100.0
            status = activity.status()
    assert (status.seconds < 100.0) is moves


def test_of_calls_at_the_same_time_the_last_one_is_told() -> None:
    """As by two threads: the first call ends first, and does not bring back what was before it."""
    activity = Activity()
    first, second = activity.during("reward.score", 1), activity.during("cost.score", 2)
    told = [activity.status().call]
    for change in (first.__enter__, second.__enter__):
        change()
        told.append(activity.status().call)
    for call in (first, second):
        call.__exit__(None, None, None)
        told.append(activity.status().call)
    assert told == ["", "reward.score", "cost.score", "cost.score", ""]


def test_a_method_can_be_watched_by_effort() -> None:
    class Worker(ActivityServer):
        @heartbeat_by_cpu
        def restore(self, address: str) -> tuple[str, str]:
            return self.activity.status().call, address

    worker = Worker()
    assert worker.restore("there") == ("restore", "there")
    assert worker.activity.status().call == ""


def test_stacks_say_where_every_thread_is() -> None:
    activity = Activity()
    address = activity.serve("127.0.0.1", "secret")
    entered, leave = threading.Event(), threading.Event()

    def stuck_here() -> None:
        entered.set()
        leave.wait()

    thread = threading.Thread(target=stuck_here, name="stuck")
    thread.start()
    entered.wait()
    status = request_status(address, "secret")
    leave.set()
    thread.join()
    activity.close()
    assert status is not None and "stuck_here" in status.stacks["stuck"]
    assert status.thread == "MainThread"
    assert "test_stacks_say_where" in status.stacks["MainThread"]


def test_a_stranger_gets_no_answer() -> None:
    activity = Activity()
    assert request_status(activity.serve("127.0.0.1", "secret"), "guess") is None
    activity.close()


def test_a_worker_that_is_gone_gives_none() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    assert request_status(address, "secret") is None
