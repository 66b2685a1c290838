"""From one incarnation to the next."""

from __future__ import annotations

import errno
from collections.abc import Sequence

import pytest

from rlhf_api.spec.failure import FailurePolicy
from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.checkpoint.store import Checkpoint
from rlhf_runtime.controller.restarts import Restarts
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.controller.supervise import supervise
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.errors import (
    NodeLost,
    NoProgress,
    NoSpace,
    StorageFailed,
    UserCodeFailed,
    WorkerLost,
    WorkerRaised,
)
from rlhf_runtime.telemetry.errors import CannotRecord

LOST = WorkerLost("a worker died")


class Story:
    """Incarnations that end as told, each behind a newer checkpoint."""

    def __init__(
        self,
        ends: Sequence[bool | Exception],
        newest: Sequence[int | Exception | None] = (None, 2, 4, 6, 8, 10),
    ) -> None:
        self._ends = iter(ends)
        self._newest = iter(newest)
        self.events: list[str] = []
        self.newest_step = -1
        self.lost_nodes = ""
        self.stop = StopRequest()

    def incarnation(self, checkpoint: Checkpoint | None) -> bool:
        self.events.append("start" if checkpoint is None else f"from {checkpoint.record.step}")
        end = next(self._ends)
        if isinstance(end, Exception):
            raise end
        return end

    def newest(self) -> Checkpoint | None:
        step = next(self._newest)
        if isinstance(step, Exception):
            raise step
        if step is None:
            return None
        self.newest_step = step
        return Checkpoint("", CheckpointRecord(step, 1, {}))

    def notice(self, text: str) -> None:
        self.events.append(text.splitlines()[-1])

    def resumed(self, step: int, address: str) -> None:
        self.events.append(f"going on from the checkpoint of step {step}")

    def restarting(self, number: int, seconds: float, reason: str, message: str) -> None:
        self.events.append(f"restart {number} in {seconds:g} s, after {reason}: {message}")

    def run(self) -> bool:
        policy = FailurePolicy(max_restarts=3, max_disruptions=1, backoff_seconds=7)
        return supervise(
            self.incarnation,
            self,  # type: ignore[arg-type]
            Restarts(policy),
            self,  # type: ignore[arg-type]
            lambda: self.events.append("again"),
            self.stop,
            lambda: self.lost_nodes,
            lambda seconds: self.events.append(f"sleep {seconds:g}"),
            lambda: self.events.append("wait for space"),
        )


def test_the_next_incarnation_goes_on_from_the_newest_checkpoint() -> None:
    story = Story([LOST, True])
    assert story.run()
    assert story.events == [
        "start",
        "restart 1 in 0 s, after WorkerLost: a worker died",
        "sleep 0",
        "again",
        "going on from the checkpoint of step 2",
        "from 2",
    ]


def test_a_job_that_was_stopped_is_not_started_again() -> None:
    story = Story([False])
    assert not story.run()
    assert story.events == ["start"]


def test_a_failure_after_a_wish_to_stop_is_the_end() -> None:
    story = Story([LOST, True])
    story.stop.requested = True
    assert not story.run()
    assert story.events == ["start", "WorkerLost: a worker died"]


def test_what_running_again_cannot_help_is_raised() -> None:
    story = Story([LOST, UserCodeFailed("it raised")])
    with pytest.raises(UserCodeFailed):
        story.run()
    assert story.events[-1] == "from 2"


def test_workers_start_again_when_their_disk_has_space() -> None:
    full = with_cause(CannotRecord("journal"), OSError(errno.ENOSPC, "full"))
    story = Story([full, LOST, True], newest=[2, 2, 2])
    assert story.run()
    assert [event for event in story.events if event in ("again", "wait for space")] == [
        *("wait for space", "again", "again")
    ]


def test_a_disk_that_is_full_again_and_again_ends_with_a_reason_of_its_own() -> None:
    full = with_cause(CannotRecord("journal"), OSError(errno.ENOSPC, "full"))
    story = Story([full] * 4, newest=[2] * 4)
    with pytest.raises(NoSpace, match="CannotRecord: journal"):
        story.run()
    assert story.events.count("wait for space") == 3


def test_storage_that_fails_for_a_while_is_waited_for() -> None:
    unreachable = StorageFailed("no route to host")
    story = Story([LOST, True], newest=[None, unreachable, unreachable, 2])
    assert story.run()
    assert [event for event in story.events if event.startswith(("sleep", "from"))] == [
        "sleep 0",
        "sleep 7",
        "sleep 14",
        "from 2",
    ]


def test_storage_that_fails_does_not_hide_what_ended_the_job() -> None:
    story = Story([UserCodeFailed("it raised")], newest=[None, StorageFailed("no route to host")])
    with pytest.raises(UserCodeFailed, match="it raised"):
        story.run()


@pytest.mark.parametrize("error", [LOST, WorkerRaised("a collective broke"), NoProgress("none")])
def test_a_lost_node_explains_a_failure_of_workers(error: Exception) -> None:
    story = Story([error, error], newest=[None, None])
    story.lost_nodes = "10.0.0.7"
    with pytest.raises(NodeLost, match=r"got 10\.0\.0\.7; ") as raised:
        story.run()
    assert raised.value.__cause__ is error
    (told,) = [event for event in story.events if event.startswith("restart ")]
    assert told.startswith("restart 1 in 0 s, after NodeLost: nodes of the workers are lost")


def test_a_lost_node_explains_no_fault_of_the_users() -> None:
    story = Story([UserCodeFailed("a mistake")])
    story.lost_nodes = "10.0.0.7"
    with pytest.raises(UserCodeFailed, match="a mistake"):
        story.run()
