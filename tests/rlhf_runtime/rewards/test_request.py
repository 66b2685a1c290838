"""What is still to be done of a request, whoever answers when."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import numpy as np
import pytest

from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.request import MAX_LOST_IN_A_ROW, Request, SampleBatch, far_apart

MakeSamples = Callable[..., list[Sample]]
RAISED = BatchScores(batch_fault=RewardFault.RAISED, detail="why", retry_alone=True)
GOOD = BatchScores(array("f", [1.0]))
NAN = BatchScores(array("f", [float("nan")]), faults={0: (RewardFault.NON_FINITE, "NaN")})


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Trial:
    """A request of which a batch of 8 has failed, and samples of which are tried one by one, in the
    order 0, 3, 6, 1, 4, 7, 2, 5."""

    def __init__(self, samples: list[Sample], answer: BatchScores | None = RAISED) -> None:
        self.clock = Clock()
        self.request = Request(samples, 8, limit_seconds=10.0, clock=self.clock)
        self.next(10.0, answer)

    def next(self, seconds: float, answer: BatchScores | None = RAISED) -> None:
        """The next sample takes so long. None: its process ends."""
        batch = self.request.next_batch()
        self.clock.now += seconds
        if answer is None:
            self.request.lose(batch, RewardFault.TIMED_OUT, "too long")
        else:
            self.request.record(batch, answer)

    @property
    def left(self) -> list[int]:
        return [batch.start for batch in self.request.pending]


@pytest.mark.parametrize("bad", [RAISED, NAN])
@pytest.mark.parametrize("scored_before", [False, True])
def test_samples_of_a_batch_are_given_up_where_none_has_a_score_for_too_long(
    samples: MakeSamples, scored_before: bool, bad: BatchScores
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
    assert trial.left == ([7, 2, 5, 8] if scored_before else [6, 1, 4, 7, 2, 5, 8])
    trial.next(4.0, bad)
    assert trial.left == [8]
    trial.next(0.0, BatchScores(array("f", [1.0, 1.0])))
    scores = trial.request.scores()
    assert trial.request.is_done and scores.rescored == 8
    valid = [6, 8, 9] if scored_before else [8, 9]
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
    assert trial.left == [1, 4, 7, 2, 5]
    trial.request.put_back(trial.request.next_batch())
    assert trial.left == [1, 4, 7, 2, 5]
    trial.next(1.0)
    assert trial.left == []


def test_samples_that_are_tried_at_once_take_their_time_once(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefgh"))
    two = [trial.request.next_batch() for _ in range(2)]
    for batch in two:
        trial.clock.now += 3.0
        trial.request.record(batch, RAISED)
    trial.next(3.0)
    assert trial.left == [1, 4, 7, 2, 5]
    trial.next(1.0)
    assert trial.left == []


def test_what_is_given_up_is_told_with_what_its_batch_failed_of(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefgh"))
    trial.next(10.0, BatchScores(batch_fault=RewardFault.UNREACHABLE, detail="too late"))
    scores = trial.request.scores()
    assert scores.errors == {"raised": 7, "unreachable": 1}
    late, *given_up = scores.failures
    assert late.detail == "too late"
    assert {each.detail for each in given_up} == {"given up with its batch, which failed: why"}


@pytest.mark.parametrize("answer", [RAISED, None])
def test_samples_that_lose_their_process_cost_no_others(
    samples: MakeSamples, answer: BatchScores | None
) -> None:
    """However long they took, whatever their batch failed of, and as neighbours too."""
    trial = Trial(samples(*"abcdefgh"), answer)
    for number in [0, 3, 6, 1, 4, 7, 2, 5]:
        assert trial.left[0] == number
        trial.next(10.0, None if number < 4 else GOOD)
    scores = trial.request.scores()
    assert np.flatnonzero(~scores.valid).tolist() == [0, 1, 2, 3]
    assert scores.errors == {"timedOut": 4} and scores.rescored == 8
    assert [(each.start, each.detail) for each in scores.failures] == [
        (number, "too long") for number in range(4)
    ]


def test_a_batch_whose_samples_all_lose_their_process_is_given_up(samples: MakeSamples) -> None:
    trial = Trial(samples(*"abcdefghijkl"), RAISED)
    trial.next(1.0, GOOD)
    for _ in range(3):
        trial.next(0.1, None)
    assert trial.left == [4, 7, 2, 5, 8]
    trial.next(0.1, None)
    assert trial.left == [8], "the next batch is tried, since a sample has a score"
    assert trial.request.scores().errors == {"timedOut": 4, "raised": 3}


def test_a_request_is_given_up_where_every_sample_loses_its_process(samples: MakeSamples) -> None:
    """Else each of its batches would cost as many processes and as much time."""
    trial = Trial(samples(*["a"] * 24), None)
    in_flight = [trial.request.next_batch() for _ in range(3)]
    for batch in in_flight:
        trial.request.lose(batch, RewardFault.DIED, "gone")
    assert trial.left == [1, 4, 7, 2, 5, 8, 16]
    other = trial.request.next_batch()
    trial.request.put_back(other)
    trial.next(0.1, None)
    assert trial.left == []
    scores = trial.request.scores()
    assert scores.errors == {"timedOut": 21, "died": 3} and not scores.valid.any()


def test_a_batch_under_way_when_its_request_is_given_up_is_not_tried_again(
    samples: MakeSamples,
) -> None:
    request = Request(samples(*["a"] * 16), 8)
    first, second = request.next_batch(), request.next_batch()
    request.lose(first, RewardFault.DIED, "gone")
    for _ in range(4):
        request.lose(request.next_batch(), RewardFault.DIED, "gone")
    assert not request.pending and not request.is_done
    request.lose(second, RewardFault.DIED, "gone")
    assert request.is_done and request.scores().errors == {"died": 16}


@pytest.mark.parametrize("batch_size", [1, 256])
@pytest.mark.parametrize("processes", [1, 4])
@pytest.mark.parametrize(
    "hanging",
    [{3, 30, 31, 77, 78, 79, 140, 200, 201, 255}, set(range(8))],
    ids=["any", "the first prompt's"],
)
def test_samples_that_hang_cost_no_others_with_any_number_of_processes(
    samples: MakeSamples, hanging: set[int], processes: int, batch_size: int
) -> None:
    """Although at some time every process has a sample that hangs."""
    request = score_all(samples(*["a"] * 256), batch_size, processes, hanging)
    assert set(np.flatnonzero(~request.scores().valid).tolist()) == hanging


@pytest.mark.parametrize("batch_size", [1, 256])
@pytest.mark.parametrize("processes", [1, 4])
def test_a_request_whose_samples_all_hang_is_given_up_soon(
    samples: MakeSamples, processes: int, batch_size: int
) -> None:
    clock = Clock()
    request = score_all(samples(*["a"] * 256), batch_size, processes, set(range(256)), clock)
    assert request.scores().errors == {"timedOut": 256}
    assert clock.now <= 10.0 * (MAX_LOST_IN_A_ROW + 1)
    assert "too long" in request.scores().failures[0].detail


def test_samples_in_batches_of_their_own_are_all_tried_once_one_has_a_score(
    samples: MakeSamples,
) -> None:
    request = Request(samples(*"abcdefgh"), 1)
    request.record(request.next_batch(), GOOD)
    for _ in range(7):
        request.lose(request.next_batch(), RewardFault.TIMED_OUT, "too long")
    assert request.is_done and request.scores().failures[-1].detail == "too long"


def score_all(
    samples: list[Sample],
    batch_size: int,
    processes: int,
    hanging: set[int],
    clock: Clock | None = None,
) -> Request:
    """Score a request: batches with hanging samples end after 10 s, all others at once."""
    clock = clock or Clock()
    request = Request(samples, batch_size, limit_seconds=10.0, clock=clock)
    stuck: list[SampleBatch] = []
    while not request.is_done:
        while request.pending and len(stuck) < processes:
            batch = request.next_batch()
            if hanging.isdisjoint(range(batch.start, batch.start + len(batch.samples))):
                request.record(batch, GOOD)
            else:
                stuck.append(batch)
        clock.now += 10.0
        for batch in stuck:
            request.lose(batch, RewardFault.TIMED_OUT, "too long")
        stuck.clear()
    return request


def test_a_sample_that_raises_does_not_end_a_row_of_lost_ones(samples: MakeSamples) -> None:
    """Else a verifier that hangs and raises by turns would take its time for all."""
    trial = Trial(samples(*"abcdefgh"), None)
    for answer in (None, RAISED, None, None, None):
        assert trial.left
        trial.next(1.0, answer)
    assert not trial.left


@pytest.mark.parametrize("count", [0, 1, 2, 3, 8, 80, 256, 257])
def test_neighbours_are_tried_far_apart(count: int) -> None:
    order = far_apart(count)
    assert sorted(order) == list(range(count))
    places = {number: place for place, number in enumerate(order)}
    gaps = [abs(places[number + 1] - places[number]) for number in range(count - 1)]
    assert not gaps or min(gaps) >= np.sqrt(count) - 2
