"""What is still to be done of a request, whoever answers when."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.request import Request

MakeSamples = Callable[..., list[Sample]]
RAISED = BatchScores(batch_fault=Fault.RAISED, detail="why", by_one_sample=True)
GOOD = BatchScores(array("f", [1.0]))


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("scored_before", [False, True])
def test_samples_of_a_batch_are_given_up_where_none_has_a_score_for_too_long(
    samples: MakeSamples, scored_before: bool
) -> None:
    """A verifier that needs long to fail, such as one whose service is down, does so for each; once
    one has a score all are tried. Other batches stay."""
    clock = Clock()
    request = Request(samples(*"abcdef"), 4, limit_seconds=10.0, clock=clock)
    request.answer(request.next_batch(), RAISED)
    for number in range(3):
        clock.now += 4.0
        request.answer(request.next_batch(), GOOD if scored_before and not number else RAISED)
    left = [batch.start for batch in request.pending]
    assert left == ([3, 4] if scored_before else [4])
    if scored_before:
        request.answer(request.next_batch(), RAISED)
    request.answer(request.next_batch(), BatchScores(array("f", [1.0, 1.0])))
    scores = request.scores()
    assert request.is_over and scores.valid.tolist() == [scored_before, *[False] * 3, True, True]
    assert dict(scores.errors) == {"raised": 3 if scored_before else 4} and scores.rescored == 4


@pytest.mark.parametrize("ends", ["fails", "is no number"])
def test_samples_that_hang_or_have_no_value_have_no_score(samples: MakeSamples, ends: str) -> None:
    """The limit of a batch holds however its samples end."""
    clock = Clock()
    request = Request(samples(*"abcdef"), 6, limit_seconds=10.0, clock=clock)
    request.answer(request.next_batch(), RAISED)
    for _ in range(3):
        clock.now += 4.0
        batch = request.next_batch()
        if ends == "fails":
            request.fail(batch, Fault.TIMED_OUT, "too long")
        else:
            nan = BatchScores(array("f", [float("nan")]), {0: (Fault.NON_FINITE, "NaN")})
            request.answer(batch, nan)
    assert request.is_over and not request.scores().valid.any()
