"""What is told of the failures of a request, in whatever order they come."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.scores import Tally


@pytest.mark.parametrize("order", [1, -1])
def test_batches_that_have_scores_after_all_are_told_last(order: int) -> None:
    """Five batches of two fail together only, the last two rows really: these are in front."""
    tally = Tally(12)
    for start in range(0, 12, 2)[::order]:
        tally.split(start, 2, RewardFault.RAISED, "together")
    for row in range(12)[::order]:
        if row < 10:
            tally.add(row, 1, BatchScores(array("f", [row])))
        else:
            tally.fail(row, 1, RewardFault.RAISED, "alone")
    scores = tally.scores()
    assert np.flatnonzero(~scores.valid).tolist() == [10, 11] and scores.rescored == 12
    assert [(each.start, each.size, each.only_together) for each in scores.failures] == [
        (10, 1, False),
        (11, 1, False),
        (0, 2, True),
        (2, 2, True),
        (4, 2, True),
    ]


def test_a_batch_on_which_its_verifier_abstains_alone_failed_together_only() -> None:
    tally = Tally(2)
    tally.split(0, 2, RewardFault.RAISED, "together")
    tally.add(0, 1, BatchScores(array("f", [0.0]), abstained=(0,)))
    tally.add(1, 1, BatchScores(array("f", [3.0])))
    scores = tally.scores()
    assert (scores.valid.tolist(), scores.abstained.tolist()) == ([False, True], [True, False])
    assert scores.errors == {} and [each.only_together for each in scores.failures] == [True]


@pytest.mark.parametrize("order", [1, -1])
def test_failures_beyond_those_that_are_told_are_counted(order: int) -> None:
    tally = Tally(20)
    for row in range(20)[::order]:
        tally.fail(row, 1, RewardFault.DIED, "gone")
    scores = tally.scores()
    assert [each.start for each in scores.failures] == [0, 1, 2, 3, 4]
    assert scores.errors == {"died": 20} and not scores.valid.any()
