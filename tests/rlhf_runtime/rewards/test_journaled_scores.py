"""Scores from the journal are those of the interrupted attempt, to the last metric."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.journal.answers import AnswerJournal, CallAnswers, CallScope
from rlhf_runtime.journal.errors import JournalMismatch
from rlhf_runtime.journal.folder import JournalFolder, PassSettings, Position
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.scorer import ScoredSamples, Scorer
from rlhf_runtime.telemetry.errors import CannotRecord

from ...scoring_service import scoring_service

MakeReward = Callable[..., RewardSpec]
MakeSamples = Callable[..., list[Sample]]
MakeAnswers = Callable[..., CallAnswers]


@pytest.fixture
def answers(tmp_path: Path) -> MakeAnswers:
    """Answers about some samples, of a new attempt at each call."""

    def make(num_samples: int, code: str = "") -> CallAnswers:
        settings = PassSettings(f"same {code}", code)
        folder = JournalFolder(tmp_path / "journal", settings, JournalMode.EXACT, print)
        attempt = folder.begin(0)
        assert attempt is not None
        scope = CallScope(Position(1), 0, "reward.score", 0)
        return AnswerJournal(attempt, "reward 0").call_answers(scope, range(num_samples))

    return make


class Service:
    """Answers otherwise each time: with the number of samples seen so far."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        # Answers by response, instead of numbers.
        self.special: dict[str, Any] = {}
        self._lock = threading.Lock()

    def __call__(self, sample: Mapping[str, Any]) -> Any:
        with self._lock:
            self.asked.append(sample["response"])
            number = float(len(self.asked))
        special = self.special.get(sample["response"], number)
        return special(number) if callable(special) else special


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def url(service: Service) -> Iterator[str]:
    with scoring_service(service) as address:
        yield address


def http(url: str, **settings: Any) -> RewardSpec:
    own = {name: settings.pop(name) for name in ("where", "weight") if name in settings}
    return RewardSpec.model_validate({"name": "remote", "http": {"url": url, **settings}, **own})


def score(
    rewards: Sequence[RewardSpec], samples: list[Sample], answers: CallAnswers
) -> ScoredSamples:
    with Scorer(rewards) as scorer:
        return scorer.score(samples, answers=answers)


def assert_equal(one: ScoredSamples, other: ScoredSamples) -> None:
    for ours, theirs in zip(astuple(one)[:-1], astuple(other)[:-1], strict=True):
        np.testing.assert_equal(ours, theirs)


def test_a_service_is_not_asked_twice(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    service.special = {"abstain": None, "text": "ten", "infinite": 1e300}
    spec = http(url, batchSize=2, maxConcurrency=3)
    asked = samples("a", "abstain", "text", "b", "infinite", "c")
    first = score([spec], asked, answers(6))
    assert first.valid.tolist() == [True, False, False, True, False, True]
    assert len(service.asked) == 6
    second = score([spec], asked, answers(6))
    assert len(service.asked) == 6
    assert_equal(second, first)
    assert [str(one) for one in second.failures["remote"]] == [
        str(one) for one in first.failures["remote"]
    ]


def test_only_the_missing_samples_are_asked_for(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    spec = http(url, batchSize=1, maxConcurrency=1)
    hanging, released = threading.Event(), threading.Event()

    def hang(number: float) -> float:
        hanging.set()
        released.wait(20)
        return number

    asked = samples(*"abcd")
    # The third sample that is sent.
    numbers = count(1)
    service.special = dict.fromkeys("abcd", lambda n: hang(n) if next(numbers) == 3 else n)
    scorer = Scorer([spec])
    first = answers(4)
    scoring = threading.Thread(
        target=lambda: pytest.raises(RewardError, scorer.score, asked, answers=first)
    )
    scoring.start()
    assert hanging.wait(20)
    scorer.close()
    scoring.join()
    released.set()
    service.special = {}
    known = service.asked[:2]
    second = answers(4)
    resumed = score([spec], asked, second)
    assert second.num_read == 2
    assert sorted(service.asked[3:]) == sorted({*"abcd"} - {*known})
    by_response = dict(zip("abcd", resumed.values.tolist(), strict=True))
    assert [by_response[response] for response in known] == [1.0, 2.0]
    third = score([spec], asked, answers(4))
    assert_equal(third, resumed)
    assert len(service.asked) == 5


def test_parts_and_samples_without_a_reward_of_this_kind(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    where = {"field": "answer", "values": ["1"]}
    spec = http(url, parts={"form": 0.5, "sense": 2.0}, where=where)
    service.special = {
        "both": lambda number: {"form": number, "sense": 0.1},
        "one": lambda number: {"sense": number},
        "none": {},
    }
    asked = [*samples("both", "one", "none"), *samples("other", answer=2)]
    first = score([spec], asked, answers(4))
    second = score([spec], asked, answers(4))
    assert service.asked == ["both", "one", "none"]
    assert_equal(second, first)
    assert second.means["reward/remote/form"][1] == 1.0


def function(name: str, **settings: Any) -> RewardSpec:
    content = {"entrypoint": f"my_verifiers:{name}", **settings}
    return RewardSpec.model_validate({"name": "own", "function": content})


def test_a_function_is_asked_again_unless_it_is_not_repeatable(
    verifiers: Path, samples: MakeSamples, answers: MakeAnswers
) -> None:
    asked = samples("raise", "a", "b", "c")
    for repeatable, num_read in ((True, 0), (False, 4), (True, 4)):
        spec = function("by_response", batchSize=3, repeatable=repeatable)
        first = score([spec], asked, answers(4))
        repeated = answers(4)
        assert_equal(score([spec], asked, repeated), first)
        assert first.counts["score/rescored"] == 3.0, "a metric that the journal keeps"
        assert repeated.num_read == num_read


@pytest.mark.parametrize(("act", "num_read"), [("sleep", 1), ("die", 0)])
def test_a_function_that_was_too_slow_is_not_tried_again(
    verifiers: Path, samples: MakeSamples, answers: MakeAnswers, act: str, num_read: int
) -> None:
    spec = function("by_response", batchSize=1, timeoutSeconds=1)
    asked = samples("a", act)
    first = score([spec], asked, answers(2))
    assert first.valid.tolist() == [True, False]
    repeated = answers(2)
    assert_equal(score([spec], asked, repeated), first)
    assert repeated.num_read == num_read, "a process may die with its machine"
    corrected = answers(2, code="corrected")
    score([spec], asked, corrected)
    assert corrected.num_read == 0


def test_rewards_of_one_call_have_answers_of_their_own(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    specs = [http(url), http(url).model_copy(update={"name": "second", "weight": 100.0})]
    asked = samples("a", "b")
    first = score(specs, asked, answers(2))
    assert_equal(score(specs, asked, answers(2)), first)
    assert sorted(service.asked) == ["a", "a", "b", "b"]


@pytest.mark.parametrize(
    "change",
    [
        *({"response": "x"}, {"prompt": "x"}, {"record": {"answer": "x"}}, {"finished": False}),
        *({"turns": ("b", "a")}, {"environment_reward": 0.0}),
    ],
)
def test_another_sample_is_another_question(
    url: str, samples: MakeSamples, answers: MakeAnswers, change: Mapping[str, Any]
) -> None:
    (sample,) = samples("a")
    score([http(url)], [sample], answers(1))
    other = Sample(**{name: getattr(sample, name) for name in Sample.__slots__} | dict(change))
    with pytest.raises(JournalMismatch, match="asks remote another question .* the response '"):
        score([http(url)], [other], answers(1))


@pytest.mark.parametrize(
    ("settings", "is_same"),
    [
        ({"maxConcurrency": 2, "timeoutSeconds": 3, "onError": "Zero"}, True),
        ({"headers": [{"name": "X-a", "value": "b"}]}, True),
        ({"parameters": {"strict": True}}, False),
        ({"parts": {"form": 1.0}}, False),
    ],
)
def test_another_setting_of_the_reward_is_another_question(
    url: str,
    samples: MakeSamples,
    answers: MakeAnswers,
    settings: Mapping[str, Any],
    is_same: bool,
) -> None:
    score([http(url)], samples("a"), answers(1))
    repeated = replace(answers(1), attempt=replace(answers(1).attempt, mode=JournalMode.ASK_AGAIN))
    score([http(url, **settings)], samples("a"), repeated)
    assert (repeated.num_read, repeated.num_different) == ((1, 0) if is_same else (0, 1))


def test_a_failure_that_ends_the_job_is_not_kept(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    service.special = {"bad": "no number"}
    spec = http(url, onError="Fail", batchSize=1, maxConcurrency=1)
    for _ in range(2):
        with pytest.raises(RewardError, match="got 'no number'"):
            score([spec], samples("good", "bad"), answers(2))
    assert service.asked == ["good", "bad", "bad"]


def test_a_failure_of_a_call_that_did_not_end_is_not_kept(
    service: Service, url: str, samples: MakeSamples, answers: MakeAnswers
) -> None:
    # Its node may have lost its network.
    service.special = {"bad": "no number"}
    interrupted = answers(2)
    interrupted.sync = interrupted._pass_answers.sync  # type: ignore[method-assign]
    score([http(url)], samples("good", "bad"), interrupted)
    repeated = answers(2)
    score([http(url)], samples("good", "bad"), repeated)
    assert repeated.num_read == 1 and service.asked == ["good", "bad", "bad"]


def test_scores_leave_only_when_they_are_on_the_disk(
    url: str, samples: MakeSamples, answers: MakeAnswers, tmp_path: Path
) -> None:
    broken = answers(1)
    (tmp_path / "journal" / "step-000001").write_text("no folder")
    with pytest.raises(CannotRecord, match="the journal cannot be written"):
        score([http(url)], samples("a"), broken)
