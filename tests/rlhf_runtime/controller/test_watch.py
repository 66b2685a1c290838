"""Who is taken for hung, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_runtime.controller.watch import StallDetector, WorkerWatch
from rlhf_runtime.errors import NoProgress
from rlhf_runtime.workers.activity import Activity, WorkerStatus


def busy(seconds: float) -> WorkerStatus:
    return WorkerStatus("actor.train", 3, seconds, {}, "MainThread")


def idle(seconds: float) -> WorkerStatus:
    return WorkerStatus("", 3, seconds, {}, "MainThread")


def test_who_moves_is_not_hung() -> None:
    assert StallDetector(10).observe({"rank 0": busy(9.0)}, 0.0) == {}


def test_who_stands_still_in_a_call_is_hung_after_the_deadline() -> None:
    still = StallDetector(10).observe({"rank 0": busy(12.0), "rank 1": busy(11.0)}, 100.0)
    assert still == {"rank 0": 12.0, "rank 1": 11.0}


def test_who_waits_for_another_that_moves_is_not_hung() -> None:
    assert StallDetector(10).observe({"rank 0": busy(500.0), "rank 1": busy(1.0)}, 0.0) == {}


def test_who_waits_for_a_call_is_not_hung() -> None:
    assert StallDetector(10).observe({"rank 0": idle(100.0)}, 0.0) == {}
    still = StallDetector(10).observe({"rank 0": idle(100.0), "rank 1": busy(20.0)}, 0.0)
    assert still == {"rank 1": 20.0}


def test_who_does_not_answer_is_hung_after_the_deadline() -> None:
    stalls = StallDetector(10)
    assert stalls.observe({"rank 0": idle(1.0)}, 0.0) == {}
    assert stalls.observe({"rank 0": None}, 400.0) == {}, "silence begins with the first look"
    assert stalls.observe({"rank 0": idle(1.0)}, 405.0) == {}
    assert stalls.observe({"rank 0": None}, 410.0) == {}
    assert stalls.observe({"rank 0": None}, 421.0) == {"rank 0": 11.0}


def test_the_message_names_call_rank_and_stack(tmp_path: Path) -> None:
    activity, silent = Activity(), Activity()
    addresses = {
        "rank 0": activity.serve("127.0.0.1", "k"),
        "rank 1": silent.serve("127.0.0.1", "other"),
    }
    clock = iter([0.0, 100.0])
    watch = WorkerWatch(addresses, "k", 20.0, tmp_path / "stacks.txt", "sort", lambda: next(clock))
    with activity.during("actor.train", 3):
        watch.poll()
        activity._since -= 50.0
        with pytest.raises(NoProgress) as raised:
            watch.poll()
    activity.close()
    silent.close()
    text = str(raised.value)
    assert "no progress for 100 s in job sort" in text and "allowed 20 s" in text
    assert "rank 0 in actor.train, step 3, nothing done" in text and "File " in text
    assert "rank 1 does not answer" in text
    stacks = (tmp_path / "stacks.txt").read_text()
    assert "rank 0, thread MainThread" in stacks and "test_watch.py" in stacks
