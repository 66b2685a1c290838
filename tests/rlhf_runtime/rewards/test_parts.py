"""A reward of named parts: their weighted sum, and a metric for each."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.messages import RewardFault, check_scores
from rlhf_runtime.rewards.scorer import Scorer

PARTS = {"digit": 2.0, "length": -0.5}

MakeReward = Callable[..., RewardSpec]
MakeSamples = Callable[..., list[Sample]]


def test_a_score_is_the_weighted_sum_of_its_parts(reward: MakeReward, samples: MakeSamples) -> None:
    responses = ("a1", "abcd", "none", "missing", "empty", "number", "unknown", "nan")
    with Scorer([reward("in_parts", name="form", weight=10, parts=PARTS)]) as scorer:
        scored = scorer.score(samples(*responses))
    assert scored.values.tolist() == [10.0, -20.0, 0.0, 20.0, 0.0, 0.0, 0.0, 0.0]
    assert scored.valid.tolist() == [True, True, False, True, False, False, False, False]
    assert scored.means["reward/form"] == (1.0, 3.0)
    assert scored.means["reward/form/digit"] == (2.0, 3.0)
    assert scored.means["reward/form/length"] == (6.0, 2.0)
    assert scored.counts["score/notANumber"] == 2 and scored.counts["score/nonFinite"] == 1
    assert scored.counts["score/abstained/form"] == 2
    details = [failure.detail for failure in scored.failures["form"]]
    allowed = "allowed a map of the parts digit, length, or None to abstain"
    assert details[0] == f"got 1.0, {allowed}" and details[1] == f"got the part 'size', {allowed}"
    assert details[2].startswith("got nan for the part length, allowed a finite number")


def test_a_map_without_weights_says_what_is_missing(
    reward: MakeReward, samples: MakeSamples
) -> None:
    with Scorer([reward("in_parts", name="form")]) as scorer:
        scored = scorer.score(samples("a"))
    (failure,) = scored.failures["form"]
    assert "a map needs the reward's parts" in failure.detail


@pytest.mark.parametrize("value", [3e38, {"digit": 3e38}])
def test_a_sum_beyond_float32_is_a_fault(value: object) -> None:
    parts = {"digit": 1e6} if isinstance(value, dict) else None
    scores = check_scores([value], 1, parts)
    assert [fault for fault, _ in scores.faults.values()] == (
        [RewardFault.NON_FINITE] if parts else []
    )
