from __future__ import annotations

import pytest

from rlhf_runtime.controller.unscored_steps import UnscoredSteps
from rlhf_runtime.rewards.errors import NothingScored


def test_a_series_of_steps_without_a_score_is_told_once() -> None:
    steps = UnscoredSteps(3)
    told = [
        steps.record_step(step, is_unscored)
        for step, is_unscored in enumerate([True, True, False] * 4, start=1)
    ]
    assert [step for step, text in enumerate(told, start=1) if text] == [1, 4, 7, 10]
    assert told[3].startswith("nothing is left to train on from step 4 on")
    assert "ends after 3 such steps in a row" in told[3]


def test_too_many_in_a_row_end_the_job() -> None:
    steps = UnscoredSteps(3)
    for step, is_unscored in enumerate([True, False, True, True], start=1):
        steps.record_step(step, is_unscored)
    with pytest.raises(NothingScored, match="none in the 3 steps up to 5, allowed fewer than 3"):
        steps.record_step(5, True)


def test_a_limit_of_one_ends_the_job_with_the_first() -> None:
    with pytest.raises(NothingScored, match="got none in the 1 steps up to 1"):
        UnscoredSteps(1).record_step(1, True)
