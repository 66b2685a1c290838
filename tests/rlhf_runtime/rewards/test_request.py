"""What is still to be done of a request, whoever answers when."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import pytest

from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.request import Request

MakeSamples = Callable[..., list[Sample]]
RAISED = BatchScores(batch_fault=Fault.RAISED, detail="why", retry_alone=True)
GOOD = BatchScores(array("f", [1.0]))
NAN = BatchScores(array("f", [float("nan")]), faults={0: (Fault.NON_FINITE, "NaN")})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Trial:
    """A request of which a batch of 8 has failed, and samples of which are tried one by one."""

    def __init__(self, samples: list[Sample]) -> None:
        self.clock = Clock()
        self.request = Request(samples, 8, limit_seconds=10.0, clock=self.clock)
        self.request.record(self.request.next_batch(), RAISED)

    def next(self, seconds: float, answer: BatchScores | None = RAISED) -> None:
        """The next sample takes so long. None: its process ends."""
        batch = self.request.next_batch()
        self.clock.now += seconds
        if answer is None:
            self.request.fail(batch, Fault.TIMED_OUT, "too long")
        else:
            self.request.record(batch, answer)

    @property
    def left(self) -> list[int]:
        return [batch.start for batch in self.request.pending]


@pytest.mark.parametrize("bad", [RAISED, NAN, None])
@pytest.mark.parametrize("scored_before", [False, True])
def test_samples_of_a_batch_are_given_up_where_none_has_a_score_for_too_long(
    samples: MakeSamples, scored_before: bool, bad: BatchScores | None
) -> None:
    """A verifier that needs long to fail, such as one whose service is down, does so for each,
    however it fails, and whether or not it has scored one before. Other batches stay."""
    trial = Trial(samples(*"abcdefghij"))
    for _ in range(scored_before):
        trial.next(4.0, bad)
        trial.next(4.0, bad)
        trial.next(60.0, GOOD)
    for _ in range(2):
        trial.next(4.0, bad)
    assert trial.left == ([5, 6, 7, 8] if scored_before else [2, 3, 4, 5, 6, 7, 8])
    trial.next(4.0, bad)
    assert trial.left == [8]
    trial.next(0.0, BatchScores(array("f", [1.0, 1.0])))
    scores = trial.request.scores()
    assert trial.request.is_done and scores.rescored == 8
    valid = [2, 8, 9] if scored_before else [8, 9]
    assert np.flatnonzero(scores.valid).tolist() == valid
    assert sum(scores.errors.values()) == 10 - len(valid)


def test_a_score_now_and_then_keeps_a_batch(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefgh"))
    for _ in range(4):
        trial.next(9.0)
        trial.next(9.0, GOOD)
    assert trial.request.is_done
    assert trial.request.scores().valid.tolist() == [False, True] * 4


def test_waiting_for_a_process_is_not_trying(samples: MakeSamples) -> None:
    """Other requests come first, for as long as they take."""
    trial = Trial(samples(*"abcdefgh"))
    for _ in range(3):
        trial.clock.now += 1000.0
        trial.next(3.0)
    assert trial.left == [3, 4, 5, 6, 7]
    trial.request.put_back(trial.request.next_batch())
    assert trial.left == [3, 4, 5, 6, 7]
    trial.next(1.0)
    assert trial.left == []


def test_samples_that_are_tried_at_once_take_their_time_once(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefgh"))
    two = [trial.request.next_batch() for _ in range(2)]
    for batch in two:
        trial.clock.now += 3.0
        trial.request.record(batch, RAISED)
    trial.next(3.0)
    assert trial.left == [3, 4, 5, 6, 7]
    trial.next(1.0)
    assert trial.left == []


def test_what_is_given_up_is_told_with_what_its_batch_failed_of(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefgh"))
    trial.next(10.0, None)
    scores = trial.request.scores()
    assert scores.errors == {"raised": 7, "timedOut": 1}
    late, *given_up = scores.failures
    assert late.detail == "too long"
    assert {each.detail for each in given_up} == {"given up with its batch, which failed: why"}
