"""Scores of parts are those of one request."""

from __future__ import annotations

from array import array
from math import nan

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.rewards.joined_scores import join_scores
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.scores import Tally

from ...depth import examples

ENDINGS = ("score", "abstain", "raise", "hang", "together")


def end(tally: Tally, number: int, start: int, ending: str) -> None:
    """End a batch of two samples, of which the second has another part than the first."""
    match ending:
        case "raise" | "hang":
            fault = RewardFault.RAISED if ending == "raise" else RewardFault.TIMED_OUT
            tally.fail(start, 2, fault, f"batch {number}")
            return
        case "together":
            tally.split(start, 2, RewardFault.RAISED, f"batch {number}")
    parts = {"one": array("f", [number, nan])} | (
        {"other": array("f", [nan, number])} if number % 2 else {}
    )
    abstained = (1,) if ending == "abstain" else ()
    tally.add(start, 2, BatchScores(array("f", [number, 0.5]), abstained, parts=parts))


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_parts_come_to_what_one_request_comes_to(data: st.DataObject) -> None:
    endings = data.draw(st.lists(st.sampled_from(ENDINGS), min_size=1, max_size=14))
    whole = Tally(2 * len(endings))
    for number, ending in enumerate(endings):
        end(whole, number, 2 * number, ending)
    owners = data.draw(st.lists(st.integers(0, 3), min_size=len(endings), max_size=len(endings)))
    parts = []
    for owner in range(4):
        own = [number for number, one in enumerate(owners) if one == owner]
        tally = Tally(2 * len(own))
        for index, number in enumerate(own):
            end(tally, number, 2 * index, endings[number])
        samples = [2 * number + place for number in own for place in (0, 1)]
        parts.append((samples, tally.scores()))
    joined, expected = join_scores(parts, 2 * len(endings)), whole.scores()
    np.testing.assert_equal(joined.values, expected.values)
    np.testing.assert_equal(joined.valid, expected.valid)
    np.testing.assert_equal(joined.abstained, expected.abstained)
    np.testing.assert_equal(dict(joined.parts), dict(expected.parts))
    assert list(joined.errors.items()) == list(expected.errors.items())
    assert (joined.failures, joined.rescored) == (expected.failures, expected.rescored)
