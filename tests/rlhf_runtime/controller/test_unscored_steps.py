from __future__ import annotations

import pytest

from rlhf_runtime.controller.steps import PassResult
from rlhf_runtime.controller.unscored_steps import UnscoredSteps
from rlhf_runtime.rewards.errors import NothingScored
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scores import Failure


def done(
    is_unscored: bool,
    metrics: dict[str, float] | None = None,
    unscored: tuple[tuple[str, Failure], ...] = (),
) -> PassResult:
    return PassResult(metrics or {}, {}, (), 1.0, 1, {}, unscored, is_unscored)


def test_a_series_of_steps_without_a_score_is_told_once() -> None:
    steps = UnscoredSteps(3)
    told = [
        steps.record_step(step, done(is_unscored))
        for step, is_unscored in enumerate([True, True, False] * 4, start=1)
    ]
    assert [step for step, text in enumerate(told, start=1) if text] == [1, 4, 7, 10]
    assert told[3].startswith("nothing is left to train on from step 4 on")
    assert "ends after 3 such steps in a row" in told[3]


def test_too_many_in_a_row_end_the_job() -> None:
    steps = UnscoredSteps(3)
    for step, is_unscored in enumerate([True, False, True, True], start=1):
        steps.record_step(step, done(is_unscored))
    with pytest.raises(NothingScored, match="none in the 3 steps up to 5, allowed fewer than 3"):
        steps.record_step(5, done(True))


def test_a_limit_of_one_ends_the_job_with_the_first() -> None:
    with pytest.raises(NothingScored, match="got none in the 1 steps up to 1"):
        UnscoredSteps(1).record_step(1, done(True))


def test_the_end_says_what_happened_to_the_last_steps_responses() -> None:
    metrics = {
        "score/abstained": 6.0,
        "score/abstained/exact": 5.0,
        "score/abstained/judge": 6.0,
        "score/abstained/other": 0.0,
        "score/invalid": 2.0,
        "response/left_out": 3.0,
    }
    failures = tuple(
        ("exact", Failure(RewardFault.RAISED, f"the response {number}", "", "why"))
        for number in (1, 2)
    )
    with pytest.raises(NothingScored) as caught:
        UnscoredSteps(1).record_step(4, done(True, metrics, failures))
    assert str(caught.value).endswith(
        "checkpoints are intact. Of the responses of step 4: exact abstained on 5, judge abstained "
        "on 6, verifiers failed on 2, rollout.onStop left out 3; first error, of exact: raised: "
        "the response 1: why"
    )
