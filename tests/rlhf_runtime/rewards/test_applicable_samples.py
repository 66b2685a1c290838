"""Rewards that apply to some rows abstain on all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.applicable_samples import applies
from rlhf_runtime.rewards.scorer import Scorer

MakeReward = Callable[..., RewardSpec]


def partial(reward: RewardSpec, **rows: Any) -> RewardSpec:
    document = reward.model_dump(by_alias=True, exclude_none=True)
    return RewardSpec.model_validate(document | rows)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"task": "math"}, True),
        ({"task": "code"}, False),
        ({"task": None}, False),
        ({}, False),
        ({"task": ["math"]}, False),
        ({"task": 7}, True),
        ({"task": 7.0}, True),
        ({"task": 7.5}, False),
        ({"task": True}, True),
        ({"task": False}, False),
    ],
)
def test_a_row_is_found_by_a_value(
    reward: MakeReward, record: dict[str, Any], expected: bool
) -> None:
    where = {"field": "task", "values": ["math", "7", "true"]}
    assert applies(partial(reward("length"), where=where), record, None) is expected
    nested = {"field": "meta.task", "values": ["math", "7", "true"]}
    assert applies(partial(reward("length"), where=nested), {"meta": record}, None) is expected


def test_a_row_is_found_by_its_source(reward: MakeReward) -> None:
    spec = partial(reward("length"), sources=["a", "b"])
    assert [applies(spec, {}, source) for source in ("a", "b", "c", None)] == [
        *(True, True, False, False)
    ]
    both = partial(spec, where={"field": "task", "values": ["math"]})
    assert applies(both, {"task": "math"}, "a") and not applies(both, {"task": "math"}, "c")
    assert not applies(both, {}, "a")


def test_every_row_has_the_scores_of_its_own_rewards(reward: MakeReward) -> None:
    rewards = [
        partial(reward("length", name="all", weight=0.5)),
        partial(reward("length", name="math"), where={"field": "task", "values": ["math"]}),
        partial(reward("each_response", name="code", batchSize=2), sources=["code"]),
    ]
    samples = [
        Sample("p", "ab", {"task": "math"}, True, "math"),
        Sample("p", "abc", {"task": "code"}, True, "code"),
        Sample("p", "raise", {"task": "code"}, True, "code"),
        Sample("p", "abcd", {"task": "math"}, True, "math"),
        Sample("p", "a", {}, True, "other"),
    ]
    with Scorer(rewards) as scorer:
        scored = scorer.score(samples)
    assert scored.valid.tolist() == [True, True, False, True, True]
    assert scored.values.tolist() == [3.0, 2.5, 0.0, 6.0, 0.5]
    assert scored.means["reward/math"] == (6.0, 2.0)
    assert scored.means["reward/code"] == (1.0, 1.0)
    assert scored.counts["score/abstained/math"] == 3
    (failure,) = scored.failures["code"]
    assert failure.what == "sample 2", "numbered among all samples"


def test_rows_without_a_reward_of_their_own_are_left_out(reward: MakeReward) -> None:
    only = partial(reward("length"), where={"field": "task", "values": ["math"]})
    with Scorer([only]) as scorer:
        scored = scorer.score([Sample("p", "ab", {"task": "code"}, True)] * 2)
        assert not scored.valid.any() and not scored.failures
        mixed = scorer.score([Sample("p", "ab", {"task": task}, True) for task in ("code", "math")])
    assert np.flatnonzero(mixed.valid).tolist() == [1]
