"""What verifiers say that they measure, and which jobs that is enough for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.spec.checkpoint import EVALUATION_LENGTH, EVALUATION_REWARD
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.rewards import measures
from rlhf_runtime.rewards.declared_metrics import check_metrics
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.rewards.sample import declared_metric
from rlhf_runtime.rewards.scorer import Scorer

from ..controller.jobs import make_job


def verifier(samples: object) -> list[float]:
    return []


def test_what_is_around_a_verifier_measures_what_it_does() -> None:
    inner = measures("accuracy")(functools.partial(verifier))
    assert (
        declared_metric(inner)
        == declared_metric(functools.wraps(inner)(lambda samples: []))
        == "accuracy"
    )
    assert declared_metric(verifier) is None


@pytest.mark.parametrize(
    "name",
    [
        *("", "2nd", "exact match", "a/b", "x" * 64, "pass_at_4"),
        *(name.removeprefix("evaluation/") for name in (EVALUATION_REWARD, EVALUATION_LENGTH)),
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a name for a metric: got .*, allowed .*; choose"):
        measures(name)


def test_a_process_says_what_its_function_measures(reward: Callable[..., RewardSpec]) -> None:
    with Scorer([reward("measuring", name="a"), reward("length", name="b")]) as scorer:
        assert scorer.declared_metrics == {"a": "accuracy"}


STOP = {"schedule": {"steps": 1, "promptsPerStep": 1, "warmStart": {"stopAtExactMatch": 0.5}}}
STOP |= {"data": {"train": {"builtin": "SortDigits"}}}
KEEP = {"checkpoint": {"keepBest": "ExactMatch"}}


def spec_of(**sections: Any) -> RLHFJobSpec:
    """A job with the rewards a and b."""
    rewards = [{"name": name, "function": {"entrypoint": "mine:score"}} for name in ("a", "b")]
    return make_job(rewards=rewards, **sections).spec


@pytest.mark.parametrize(
    ("sections", "field"),
    [(STOP, "schedule.warmStart.stopAtExactMatch"), (KEEP, "checkpoint.keepBest")],
)
def test_a_field_needs_a_verifier_that_measures_it(sections: dict[str, Any], field: str) -> None:
    spec = spec_of(**sections)
    for declared in ({"b": "exact_match"}, {"a": "exact_match", "b": "accuracy"}):
        check_metrics(spec, declared)
    with pytest.raises(InvalidReward) as caught:
        check_metrics(spec, {"b": "accuracy"})
    assert str(caught.value) == (
        f"no verifier measures exact_match, which {field} needs: got a (none), b (accuracy), "
        "allowed one that does, if need be of weight 0; decorate the verifier with "
        '@measures("exact_match") of rlhf_runtime.rewards, or remove the field'
    )


def test_a_metric_is_measured_by_one_verifier() -> None:
    check_metrics(spec_of(), {})
    check_metrics(spec_of(), {"a": "exact_match", "b": "accuracy"})
    with pytest.raises(InvalidReward, match=r"several .* measure x: got a \(x\), b \(x\), allowed"):
        check_metrics(spec_of(), {"a": "x", "b": "x"})
