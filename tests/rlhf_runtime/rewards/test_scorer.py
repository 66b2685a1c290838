from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.errors import InvalidReward, RewardError
from rlhf_runtime.rewards.messages import RewardFault
from rlhf_runtime.rewards.scorer import Scorer, combine_scores, for_host, start_scorers
from rlhf_runtime.rewards.scores import FailedSamples, SampleName, Scores, name_by_number

MakeReward = Callable[..., RewardSpec]
MakeSamples = Callable[..., list[Sample]]


def scores(values: list[float], valid: list[bool], **errors: int) -> Scores:
    failures = tuple(FailedSamples(RewardFault(fault), 1, 1, "why") for fault in errors)
    none = np.zeros(len(values), dtype=np.bool_)
    return Scores(np.asarray(values, np.float32), np.asarray(valid), none, errors, failures)


def partial_scores(*values: float | None) -> Scores:
    """Scores of a verifier that abstains on None."""
    abstained = np.asarray([value is None for value in values])
    return Scores(np.asarray([v or 0 for v in values], np.float32), ~abstained, abstained, {})


def test_the_reward_is_the_weighted_sum(reward: MakeReward, samples: MakeSamples) -> None:
    rewards = [
        reward("rlhf_runtime.rewards.exact_match:score", name="correct", weight=2.0),
        reward("length", name="length", weight=-0.5),
    ]
    with Scorer(rewards) as scorer:
        result = scorer.score(samples("1", "22", "333"))
    assert result.values.dtype == np.float32
    assert result.values.tolist() == [1.5, -1.0, -1.5]
    assert result.valid.all()
    assert result.means == {
        "reward/correct": (1.0, 3.0),
        "reward/length": (6.0, 3.0),
        "reward/mean": (-1.0, 3.0),
    }
    assert result.spreads["reward/std"].deviation == pytest.approx(np.std([1.5, -1.0, -1.5]))
    assert result.counts["score/invalid"] == 0
    assert result.failures == {}
    assert scorer.declared_metrics == {"correct": "exact_match"}


def test_excluded_samples_are_marked_and_counted(reward: MakeReward) -> None:
    result = combine_scores(
        [reward("a", name="a"), reward("b", name="b", weight=10.0)],
        [scores([1, 2, 3], [True] * 3), scores([1, 0, 1], [True, False, True], raised=1)],
        3,
        name_samples=lambda numbers: [SampleName(f"sample {n}", f"row {n}") for n in numbers],
    )
    assert result.valid.tolist() == [True, False, True]
    assert result.values.tolist() == [11, 0, 13]
    assert result.means["reward/b"] == (2.0, 2.0)
    assert result.means["reward/mean"] == (24.0, 2.0)
    assert result.counts["score/invalid"] == result.counts["score/excluded"] == 1
    assert result.counts["score/raised"] == 1
    assert list(map(str, result.failures["b"])) == ["raised: sample 1 to row 1: why"]
    assert list(result.failures) == ["b"] and "score/rescored" not in result.counts


def test_samples_of_several_sources_have_means_of_their_own(reward: MakeReward) -> None:
    result = combine_scores(
        [reward("a", name="a"), reward("b", name="b")],
        [scores([1, 2, 3], [True] * 3), scores([1, 0, 1], [True, False, True], raised=1)],
        3,
        sources=["math", "math", "chat"],
    )
    assert result.means == {
        "reward/a": (6.0, 3.0),
        "reward/math/a": (3.0, 2.0),
        "reward/chat/a": (3.0, 1.0),
        "reward/b": (2.0, 2.0),
        "reward/math/b": (1.0, 1.0),
        "reward/chat/b": (1.0, 1.0),
        "reward/mean": (6.0, 2.0),
        "reward/math/mean": (2.0, 1.0),
        "reward/chat/mean": (4.0, 1.0),
    }


def test_what_was_scored_again_is_counted_whatever_came_of_it(reward: MakeReward) -> None:
    once = scores([1, 2, 3], [True] * 3)
    twice = replace(scores([1, 2, 3], [True] * 3), rescored=3)
    result = combine_scores([reward("a", name="a"), reward("b", name="b")], [once, twice], 3)
    assert result.counts == {"score/invalid": 0, "score/excluded": 0, "score/rescored": 3}


def test_zero_keeps_the_sample_and_still_counts_it(reward: MakeReward) -> None:
    result = combine_scores(
        [reward("a", name="a"), reward("b", name="b", onError="Zero")],
        [scores([1, 2], [True] * 2), scores([1, 0], [True, False], timedOut=1)],
        2,
    )
    assert result.valid.all()
    assert result.values.tolist() == [2, 2]
    assert result.counts["score/invalid"] == 1
    assert result.counts["score/excluded"] == 0
    assert result.means["reward/b"] == (1.0, 1.0)


def test_where_one_verifier_abstains_the_sum_of_the_others_counts(reward: MakeReward) -> None:
    result = combine_scores(
        [reward("a", name="a", weight=2.0), reward("b", name="b"), reward("c", name="c")],
        [
            partial_scores(1, 2, None, None),
            partial_scores(5, None, None, 7),
            partial_scores(1, 2, 3, None),
        ],
        4,
    )
    assert result.values.tolist() == [8, 6, 3, 7] and result.valid.all()
    assert result.terms["a"].tolist() == [1, 2, 0, 0]
    assert result.means["reward/a"] == (3.0, 2.0) and result.means["reward/mean"] == (24.0, 4.0)
    assert result.counts == {
        "score/invalid": 0,
        "score/excluded": 0,
        "score/abstained": 3,
        "score/abstained/a": 2,
        "score/abstained/b": 2,
        "score/abstained/c": 1,
    }


@pytest.mark.parametrize("on_error", ["Exclude", "Zero", "Fail"])
def test_where_all_verifiers_abstain_the_sample_is_excluded(
    reward: MakeReward, on_error: str
) -> None:
    rewards = [reward("a", name="a", onError=on_error), reward("b", name="b", onError=on_error)]
    result = combine_scores(rewards, [partial_scores(None, 1), partial_scores(None, 1)], 2)
    assert result.valid.tolist() == [False, True] and result.values.tolist() == [0, 2]
    assert result.means["reward/mean"] == (2.0, 1.0)
    assert result.counts["score/excluded"] == result.counts["score/abstained"] == 1
    assert result.counts["score/invalid"] == 0


@pytest.mark.parametrize(
    ("weights", "valid"), [((1.0, 0.0), [False, True]), ((0.0, 0.0), [True, True])]
)
def test_a_score_of_weight_0_counts_only_where_no_reward_has_another(
    reward: MakeReward, weights: tuple[float, float], valid: list[bool]
) -> None:
    rewards = [
        reward(name, name=name, weight=weight) for name, weight in zip("ab", weights, strict=True)
    ]
    scored = [partial_scores(None, 1), partial_scores(1, 1)]
    assert combine_scores(rewards, scored, 2).valid.tolist() == valid


@pytest.mark.parametrize(("weight", "valid"), [(1.0, [True, True]), (0.0, [False, True])])
def test_a_reward_model_scores_where_verifiers_abstain(
    reward: MakeReward, weight: float, valid: list[bool]
) -> None:
    model = RewardSpec.model_validate({"name": "m", "weight": weight, "model": {"path": "m"}})
    result = combine_scores([reward("a", name="a")], [partial_scores(None, 1)], 2, [model])
    assert result.valid.tolist() == valid and "reward/mean" not in result.means


def test_a_fault_excludes_a_sample_on_which_the_others_abstain(reward: MakeReward) -> None:
    rewards = [reward("a", name="a"), reward("b", name="b")]
    failed = scores([1, 0], [True, False], raised=1)
    result = combine_scores(rewards, [failed, partial_scores(None, None)], 2)
    assert result.valid.tolist() == [True, False]
    assert result.counts["score/invalid"] == 1 and result.counts["score/excluded"] == 1


def test_means_of_no_samples_have_no_weight(reward: MakeReward) -> None:
    result = combine_scores([reward("a", name="a")], [scores([0, 0], [False] * 2, died=2)], 2)
    assert not result.valid.any()
    assert result.means == {"reward/a": (0.0, 0.0), "reward/mean": (0.0, 0.0)}
    assert result.spreads["reward/std"].count == 0
    assert result.counts == {"score/invalid": 2, "score/excluded": 2, "score/died": 2}


def test_every_role_has_a_sum_and_metrics_of_its_own(
    reward: MakeReward, samples: MakeSamples
) -> None:
    rewards = [reward("length", name="good"), reward("length", name="bad", role="cost", weight=2.0)]
    made = start_scorers(rewards, Slice(0, 1))
    found = {role: scorer.score(samples("22")) for role, scorer in made.items()}
    for scorer in made.values():
        scorer.close()
    assert {role: scored.values.tolist() for role, scored in found.items()} == {
        "reward": [2.0],
        "cost": [4.0],
    }
    assert set(found["cost"].means) == {"cost/bad", "cost/mean"}
    assert set(found["cost"].spreads) == {"cost/std"}


def test_what_a_verifier_cannot_score_is_a_warning_in_the_log(
    reward: MakeReward, samples: MakeSamples, caplog: pytest.LogCaptureFixture
) -> None:
    with Scorer([reward("length", name="good"), reward("by_response", name="odd")]) as scorer:
        scorer.score(samples("ok", "nan", "word", "none"))
    (warning,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert warning.getMessage() == (
        "the reward odd (my_verifiers:by_response) has no score for 2 of 4 samples (onError is "
        "Exclude), the first: nonFinite: sample 1: got nan, allowed a finite number, or None to "
        "abstain"
    )


def test_a_failing_verifier_stops_only_where_it_must(
    reward: MakeReward, samples: MakeSamples
) -> None:
    rewards = [reward("length"), reward("by_response", name="strict", onError="Fail")]
    with Scorer(rewards) as scorer:
        with pytest.raises(RewardError, match="strict"):
            scorer.score(samples("raise"))
        assert scorer.score(samples("ok")).values.tolist() == [3.0]


def test_on_error_fail_stops_with_the_users_traceback(
    reward: MakeReward, samples: MakeSamples
) -> None:
    def name_samples(numbers: Sequence[int]) -> list[SampleName]:
        return [SampleName("it", f"row {number}") for number in numbers]

    with Scorer([reward("each_response", onError="Fail", name="correct")]) as scorer:
        match = "(?s)correct .my_verifiers.*raised: it to row 1: .*in deeper.*own mistake"
        with pytest.raises(RewardError, match=match) as caught:
            scorer.score(samples("ok", "raise"), name_samples)
        assert (caught.value.reason, int(caught.value.exit_code)) == ("RewardFailed", 3)
        assert "correct the function or the row" in str(caught.value)
        assert scorer.score(samples("ok")).valid.all()


def test_the_failure_that_ends_a_job_is_named_and_no_batch_that_has_scores(
    reward: MakeReward, samples: MakeSamples
) -> None:
    """Six batches before it fail together only."""
    with Scorer([reward("solitary", onError="Fail", batchSize=2)]) as scorer:
        with pytest.raises(RewardError, match="raised: sample 12: .*") as caught:
            scorer.score(samples(*["ok"] * 12, "raise"))
        assert "own mistake" in str(caught.value) and "together" not in str(caught.value)


def test_names_are_asked_for_once_when_all_is_scored(
    reward: MakeReward, samples: MakeSamples
) -> None:
    """Whoever gives them may read for long: meanwhile verifiers score what else there is. One acts
    by the first response of a batch only."""
    asked = []
    rewards = [reward("by_response", name="one", batchSize=1), reward("by_response", name="two")]
    with Scorer(rewards) as scorer:

        def name_samples(numbers: Sequence[int]) -> list[SampleName]:
            asked.append(numbers)
            assert scorer.score(samples("ok")).valid.all()
            return name_by_number(numbers)

        found = scorer.score(samples("ok", "nan", "ok", "raise"), name_samples)
    assert asked == [[1, 3]]
    assert [each.what for each in found.failures["one"]] == ["sample 1", "sample 3"]
    assert [each.what for each in found.failures["two"]] == ["sample 1"]


def test_every_entrypoint_that_cannot_be_loaded_is_named(
    reward: MakeReward, verifiers: Path
) -> None:
    (verifiers / "broken.py").write_text("1 / 0\n")
    rewards = [
        reward("length", name="fine"),
        reward("nowhere:score", name="first"),
        reward("my_verifiers:lenght", name="second"),
        reward("broken:score", name="third"),
    ]
    before = psutil.Process().children()
    with pytest.raises(InvalidReward) as caught:
        Scorer(rewards)
    text = str(caught.value)
    assert "first (nowhere:score)" in text
    assert "second (my_verifiers:lenght)" in text
    assert "allowed Later, alarming" in text
    assert "ZeroDivisionError" in text
    assert "fine" not in text
    assert psutil.Process().children() == before


@pytest.mark.parametrize(("whole", "shares"), [(8, [2, 3, 3]), (3, [1, 1, 1]), (2, [1, 1, 1])])
def test_hosts_divide_the_requests_to_a_service(
    reward: MakeReward, whole: int, shares: list[int]
) -> None:
    service = RewardSpec.model_validate({"http": {"url": "http://a/", "maxConcurrency": whole}})
    parts = [for_host(service, Slice(number, 3)) for number in range(3)]
    assert [each.http and each.http.max_concurrency for each in parts] == shares
    assert for_host(reward("length"), Slice(1, 3)) == reward("length")
