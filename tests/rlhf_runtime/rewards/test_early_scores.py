"""Scores that are asked for early are those of the call, in whatever order responses end."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import astuple
from math import nan
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec.checkpoint import JournalMode
from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.journal.answers import AnswerJournal, CallScope
from rlhf_runtime.journal.folder import JournalFolder, PassSettings, Position
from rlhf_runtime.rewards import Sample
from rlhf_runtime.rewards.applicable_samples import PartialScorer
from rlhf_runtime.rewards.early_request import EarlyBatch, EarlyRequest
from rlhf_runtime.rewards.early_scores import (
    MAX_CALLS,
    MAX_FAILED,
    MAX_TIMES,
    EarlyScores,
    EndedResponse,
    Question,
)
from rlhf_runtime.rewards.errors import RewardError
from rlhf_runtime.rewards.messages import BatchScores, RewardFault
from rlhf_runtime.rewards.request import MAX_LOST_IN_A_ROW
from rlhf_runtime.rewards.scorer import ScoredSamples, Scorer
from rlhf_runtime.rewards.scores import OnScore, Scores, Tally

from ...depth import examples

SCOPE = CallScope(Position(3), 0, "reward.score", 0)
FAULTS = {"raise": RewardFault.RAISED, "hang": RewardFault.TIMED_OUT, "refuse": RewardFault.REFUSED}


class Pool:
    """Scores a sample by all responses of its batch. Batches end when they are told to."""

    title = "the pool"

    def __init__(self, batch_size: int) -> None:
        self._batch_size = batch_size
        self.asked: list[list[str]] = []
        self.num_samples: list[int] = []
        """Of each request."""
        self.waiting: list[Callable[[], None]] = []
        self.is_patient = True
        self.moods: dict[str, str] = {}
        """What a response is taken for, instead of itself."""

    def wait_until_ready(self) -> str | None:
        return None

    def submit(self, samples: Sequence[Sample], on_score: OnScore | None = None) -> Future[Scores]:
        result: Future[Scores] = Future()
        self.num_samples.append(len(samples))
        tally = Tally(len(samples), on_score)
        for start in range(0, len(samples), self._batch_size):
            batch = samples[start : start + self._batch_size]
            self.asked.append([sample.response for sample in batch])
            if len(batch) > 1 and self.asked[-1][0] == "apart":
                tally.split(start, len(batch), RewardFault.TIMED_OUT, "too slow together")
            tally.add(start, len(batch), self._scores(batch))
        if self.is_patient:
            self.waiting.append(lambda: result.set_result(tally.scores()))
        else:
            result.set_result(tally.scores())
        return result

    def _scores(self, batch: Sequence[Sample]) -> BatchScores:
        words = [self.moods.get(sample.response, sample.response) for sample in batch]
        together = crc32(" ".join(sample.response for sample in batch).encode()) % 997
        scored = [word not in FAULTS and word != "abstain" for word in words]
        return BatchScores(
            array(
                "f",
                [float(is_scored and together + index) for index, is_scored in enumerate(scored)],
            ),
            tuple(index for index, word in enumerate(words) if word == "abstain"),
            {
                index: (FAULTS[word], f"of {batch[index].response}")
                for index, word in enumerate(words)
                if word in FAULTS
            },
            parts={"form": array("f", [together if is_scored else nan for is_scored in scored])},
        )

    def end(self, number: int = 0) -> None:
        self.waiting.pop(number)()

    def end_all(self) -> None:
        """End what waits, and whatever is asked next at once."""
        self.is_patient = False
        while self.waiting:
            self.end()

    def close(self) -> None: ...


def function(size: int = 1, processes: int = 2, **settings: Any) -> RewardSpec:
    own = {name: settings.pop(name) for name in ("where",) if name in settings}
    settings |= {"entrypoint": "a.b:c", "batchSize": size, "processes": processes}
    return RewardSpec.model_validate({"name": "slow", "function": settings, **own})


class Host:
    """One reward of a host, the responses of a call, and what is asked about them early."""

    def __init__(
        self,
        spec: RewardSpec,
        responses: Sequence[str],
        journal: AnswerJournal | None = None,
        first_row: int = 40,
    ) -> None:
        assert spec.scorer is not None
        self.pool = Pool(getattr(spec.scorer, "batch_size", 1))
        self._scorer = Scorer.__new__(Scorer)
        self._scorer._rewards, self._scorer._models = (spec,), ()
        is_partial = spec.is_partial
        self._scorer._pools = [PartialScorer(spec, self.pool) if is_partial else self.pool]
        self.now = 0.0
        rewards = {"reward": self._scorer.rewards}
        self.early = EarlyScores(rewards, journal, clock=lambda: self.now)
        self._journal = journal
        self.rows = range(first_row, first_row + len(responses))
        self.samples = [
            Sample("p", text, {"kind": "ab"[row % 2]}, row % 3 > 0)
            for row, text in zip(self.rows, responses, strict=True)
        ]

    def question(self, number: int) -> Question:
        sample = self.samples[number]
        return str(sample.record), sample.response, sample.finished

    def end(self, *numbers: int, knows_rows: bool = True, scope: CallScope = SCOPE) -> None:
        """Responses end while others are generated."""
        ended = {
            self.rows[number]: EndedResponse(self.question(number), self.samples[number])
            for number in numbers
        }
        self.early.add(scope, "reward", ended, self.rows if knows_rows else None)

    def score(self, **changed: Question) -> ScoredSamples:
        """The call comes when all responses have ended."""
        numbers = range(len(self.rows))
        questions = [changed.get(f"row_{number}", self.question(number)) for number in numbers]
        answers = None
        if self._journal is not None:
            answers = self._journal.call_answers(SCOPE, self.rows)
        early = self.early.take(SCOPE, "reward", self.rows, questions)
        self.pool.end_all()
        return self._scorer.score(self.samples, answers=answers, early=early)

    def close(self) -> None:
        """Close the journal's file, without what counts only after the call."""
        assert self._journal is not None
        self._journal.call_answers(SCOPE, ()).sync()


def assert_equal(one: ScoredSamples, other: ScoredSamples) -> None:
    for ours, expected in zip(astuple(one)[:-1], astuple(other)[:-1], strict=True):
        np.testing.assert_equal(ours, expected)
    assert {name: list(map(str, told)) for name, told in one.failures.items()} == {
        name: list(map(str, told)) for name, told in other.failures.items()
    }


WORDS = ("a", "b", "c", "abstain", "raise", "hang", "refuse", "apart")


@settings(deadline=None, max_examples=examples(200))
@given(st.data())
def test_the_order_of_arrival_changes_no_score(data: st.DataObject) -> None:
    """Scores depend on all samples of a batch here, so batches must be those of the call. Some of
    the messages are lost."""
    responses = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=12))
    where = {"field": "kind", "values": ["a"]}
    more = {"where": where} if data.draw(st.booleans()) else {}
    spec = function(
        data.draw(st.integers(1, 5)), data.draw(st.integers(1, 4)), parts={"form": 1}, **more
    )
    expected = Host(spec, responses).score()
    host = Host(spec, responses)
    order = data.draw(st.permutations(range(len(responses))))
    knows_rows = data.draw(st.booleans())
    while order:
        size = data.draw(st.integers(1, len(order)))
        message, order = order[:size], order[size:]
        if data.draw(st.integers(0, 4)):
            host.end(*message, knows_rows=knows_rows)
        for _ in range(data.draw(st.integers(0, len(host.pool.waiting)))):
            host.pool.end(data.draw(st.integers(0, len(host.pool.waiting) - 1)))
    assert_equal(host.score(), expected)


def test_a_batch_is_asked_for_when_its_last_response_has_ended() -> None:
    host = Host(function(2, processes=9), list("abcdef"))
    host.end(1, 5)
    assert host.pool.asked == []
    host.end(0, 2)
    assert host.pool.asked == [["a", "b"]]
    host.end(4)
    assert host.pool.asked == [["a", "b"], ["e", "f"]]
    host.score()
    assert host.pool.asked == [["a", "b"], ["e", "f"], ["c", "d"]], "nothing twice"


def test_batches_of_unknown_rows_are_single_responses() -> None:
    pair, single = (Host(function(size), list("abcd")) for size in (2, 1))
    for host in (pair, single):
        host.end(0, 1, knows_rows=False)
    assert (pair.pool.asked, single.pool.asked) == ([], [["a"], ["b"]])


def test_no_more_batches_wait_in_the_pool_than_it_has_processes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    host = Host(function(processes=2), list("abcdef"))
    host.end(*range(5))
    assert host.pool.asked == [["a"], ["b"]]
    host.pool.end(1)
    assert host.pool.asked == [["a"], ["b"], ["c"]]
    host.score()
    assert [text for batch in host.pool.asked for text in batch] == list("abcdef")
    assert not caplog.records, "nothing is asked for after the call has"


def test_another_question_is_asked_again() -> None:
    host = Host(function(), list("ab"))
    host.end(0, 1)
    host.score(row_1=("{}", "b", True))
    assert host.pool.asked == [["a"], ["b"], ["b"]]


def test_messages_after_the_call_are_of_no_use() -> None:
    host = Host(function(), list("ab"))
    host.end(0)
    host.score()
    host.end(0, 1)
    assert host.pool.asked == [["a"], ["b"]]


@pytest.mark.parametrize(
    ("word", "settings", "num_asked"),
    [
        ("raise", {}, 1),
        ("raise", {"onError": "Zero"}, 1),
        ("raise", {"onError": "Fail"}, 2),
        ("hang", {}, 2),
        ("refuse", {}, 2),
    ],
)
def test_what_may_be_otherwise_at_the_call_is_asked_again(
    word: str, settings: dict[str, Any], num_asked: int
) -> None:
    """A function that raises does so again; with onError: Fail the call must fail itself."""
    host = Host(function(**settings), [word, "b"])
    host.end(0, 1)
    if settings.get("onError") == "Fail":
        with pytest.raises(RewardError, match="raised: sample 0: of raise"):
            host.score()
    else:
        assert host.score().counts["score/invalid"] == 1
    assert host.pool.asked.count([word]) == num_asked


def test_a_batch_that_failed_together_is_asked_again() -> None:
    """It may have been too slow for the moment only."""
    host = Host(function(2), ["apart", "b", "c", "d"])
    host.end(*range(4))
    assert host.score().counts["score/rescored"] == 2
    assert host.pool.asked == [["apart", "b"], ["c", "d"], ["apart", "b"]]


def test_a_service_that_is_up_again_has_its_say() -> None:
    host = Host(function(), list("ab"))
    host.pool.moods = {"a": "refuse"}
    host.end(0, 1)
    host.pool.moods = {}
    assert host.score().valid.tolist() == [True, True]


def test_an_error_of_the_pool_is_left_to_the_call() -> None:
    host, broken = Host(function(processes=1), list("ab")), Future[Scores]()
    broken.set_exception(RewardError("closed"))
    submit = host.pool.submit
    host.pool.submit = lambda *_: broken  # type: ignore[method-assign]
    host.end(0, 1)
    host.pool.submit = submit  # type: ignore[method-assign]
    assert host.score().valid.tolist() == [True, True]
    # As a future, so that other rewards are waited for.
    batch = EarlyBatch((0,), broken)
    assert EarlyRequest(function(), [batch], 2, lambda _: broken).complete() is broken


def test_a_function_that_answers_for_no_sample_is_given_up_by_one_request() -> None:
    """Which samples are given up depends on all of them."""
    host = Host(function(processes=9), ["hang"] * (MAX_LOST_IN_A_ROW + 1))
    host.end(*range(MAX_LOST_IN_A_ROW))
    early = host.pool.asked.copy()
    host.score()
    # What had not ended, the early ones once more, then everything.
    rest = [["hang"]]
    assert host.pool.asked == early + rest + early + early + rest


def test_samples_that_hang_among_others_cost_no_others() -> None:
    responses = [*"abcdefghijklmnopqrst"]
    for number in (3, 6, 9, 12, 15):
        responses[number] = "hang"
    host = Host(function(processes=20), responses)
    host.end(*range(20))
    assert host.score().valid.sum() == 15
    assert host.pool.asked[20:] == [["hang"]] * 5
    # In requests of which none is given up before it has asked about all of its samples.
    assert host.pool.num_samples[20:] == [0, MAX_LOST_IN_A_ROW, 1]


def test_a_reward_that_fails_again_and_again_is_left_to_the_call() -> None:
    host = Host(function(processes=1), ["hang"] * 9)
    host.end(*range(9))
    while host.pool.waiting:
        host.pool.end()
    assert len(host.pool.asked) == MAX_FAILED


def test_calls_of_long_ago_are_forgotten() -> None:
    host = Host(function(processes=1), list("ab"))
    host.end(0, 1)
    for number in range(MAX_CALLS):
        host.end(0, scope=SCOPE._replace(position=Position(4 + number)))
    assert len(host.early._calls) == MAX_CALLS
    host.pool.end()
    assert ["b"] not in host.pool.asked


def test_the_timeline_has_the_time_in_which_something_was_asked() -> None:
    host = Host(function(processes=1), list("abc"))
    for now, act in enumerate((lambda: host.end(0, 1), host.pool.end, host.pool.end), 1):
        host.now = now
        act()
    host.now = 7.0
    host.end(2)
    host.now = 9.0
    assert host.early.take_busy(SCOPE) == [(1.0, 3.0), (7.0, 9.0)]
    host.now = 10.0
    host.pool.end()
    assert host.early.take_busy(SCOPE) == [(9.0, 10.0)]
    assert host.early.take_busy(SCOPE._replace(round=1)) == []


def test_a_long_call_has_few_times_in_the_timeline() -> None:
    """Of the gaps of one second, and one of half a second, the shortest is closed."""
    host = Host(function(processes=1), ["a"] * (MAX_TIMES + 1))
    for number in range(MAX_TIMES + 1):
        host.now += 0.5 if number == 3 else 1.0
        host.end(number)
        host.now += 1.0
        host.pool.end()
    times = host.early.take_busy(SCOPE)
    assert len(times) == MAX_TIMES
    assert times[1:4] == [(3.0, 4.0), (5.0, 7.5), (8.5, 9.5)]


def test_early_answers_are_in_the_journal_and_steps_that_run_again_wait_for_the_call(
    tmp_path: Path,
) -> None:
    spec = function(repeatable=False)

    def attempt() -> AnswerJournal:
        folder = JournalFolder(tmp_path / "journal", PassSettings("", ""), JournalMode.EXACT, print)
        begun = folder.begin(0)
        assert begun is not None
        return AnswerJournal(begun, "reward")

    killed = Host(spec, ["a", "raise", "c"], attempt())
    killed.end(0, 1)
    killed.pool.end_all()
    killed.close()
    # The host was killed before the call: the failure was of no use to anyone.
    resumed = Host(spec, ["a", "raise", "c"], attempt())
    resumed.end(0, 1, 2)
    assert resumed.pool.asked == []
    first = resumed.score()
    assert resumed.pool.asked == [["raise"], ["c"]]
    again = Host(spec, ["a", "raise", "c"], attempt())
    assert_equal(again.score(), first)
    assert again.pool.asked == []
    other = Host(spec, ["a", "raise", "c"], attempt())
    other.end(0, scope=SCOPE._replace(round=1))
    other.pool.end_all()
    assert other.pool.asked == [["a"]], "another round has no answers"
    for host in (resumed, again, other):
        host.close()


def test_failures_that_a_call_has_used_are_in_the_journal(tmp_path: Path) -> None:
    spec = function(repeatable=False)
    for num_asked in (2, 0):
        folder = JournalFolder(tmp_path / "journal", PassSettings("", ""), JournalMode.EXACT, print)
        begun = folder.begin(0)
        assert begun is not None
        host = Host(spec, ["a", "raise"], AnswerJournal(begun, "reward"))
        host.end(0, 1)
        assert host.score().valid.tolist() == [True, False]
        assert len(host.pool.asked) == num_asked
