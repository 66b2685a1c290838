"""Scores responses while others are generated, before the call comes that wants the scores.

Batches have the samples that they have in the call: they follow from the numbers of its rows, not
from the order in which responses end. Whatever is lost here, the call asks for itself.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from threading import RLock
from typing import NamedTuple

from rlhf_api.spec.rewards import RewardSpec
from rlhf_runtime.journal.answers import AnswerJournal, CallAnswers, CallScope
from rlhf_runtime.rewards.applicable_samples import RewardScorer
from rlhf_runtime.rewards.early_request import EarlyBatch, EarlyBatches, batch_size, is_usable
from rlhf_runtime.rewards.journaled_scores import JournaledRequest
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores

# Calls that are remembered: passes overlap, and may have several calls and rounds.
MAX_CALLS = 16
# Batches of a reward in a call that may fail before no more are asked for early.
MAX_FAILED = 4
# Times in which batches of a call were in flight that the timeline shows.
MAX_TIMES = 32

Question = tuple[str, str, bool, str]
"""All that a reward sees of a response: the row, the text, whether it is finished, and the
conversation; the last is empty without one."""
Rows = tuple[int, ...]
"""Rows of a batch, rising."""


class EndedResponse(NamedTuple):
    """A complete response."""

    question: Question
    sample: Sample


@dataclass(frozen=True)
class _Started:
    """A batch that was asked for."""

    questions: Sequence[Question]
    scores: Future[Scores]
    answers: CallAnswers | None


@dataclass
class _Reward:
    """The batches of one reward in one call."""

    spec: RewardSpec
    scorer: RewardScorer
    complete: deque[Rows] = field(default_factory=deque)
    """Batches whose responses have all ended, and that were not asked for."""
    started: dict[Rows, _Started] = field(default_factory=dict)
    num_in_flight: int = 0
    num_failed: int = 0

    def batches_with(
        self, fresh: Sequence[int], ended: Mapping[int, EndedResponse], slice_rows: range | None
    ) -> Iterator[Rows]:
        """Yield the batches that are complete with some new rows.

        Args:
            fresh: new rows.
            ended: all rows so far that have ended.
            slice_rows: all rows of the call. None: they are not known yet.
        """
        size = batch_size(self.spec)
        if size == 1:
            yield from ((row,) for row in fresh)
        # With rows left out, or not known yet, batches are not known.
        elif slice_rows is not None and not self.spec.is_partial:
            for number in sorted({slice_rows.index(row) // size for row in fresh}):
                batch = tuple(slice_rows[number * size : (number + 1) * size])
                if all(row in ended for row in batch):
                    yield batch


@dataclass
class _Call:
    """One call that will ask for scores."""

    scope: CallScope
    rewards: Sequence[_Reward]
    """Empty: nothing is asked for early."""
    ended: dict[int, EndedResponse] = field(default_factory=dict)
    """Rows that have ended, and that the call has not asked for yet."""
    scored: set[int] = field(default_factory=set)
    """Rows that the call has asked for."""
    num_in_flight: int = 0
    busy_since: float = 0.0
    busy: list[tuple[float, float]] = field(default_factory=list)
    """Times in which batches were in flight: start and end."""


class EarlyScores:
    """The batches of a host's calls that were asked for early. Thread-safe."""

    def __init__(
        self,
        rewards: Mapping[str, Sequence[tuple[RewardSpec, RewardScorer]]],
        journal: AnswerJournal | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """
        Args:
            rewards: with their scorers, by role.
            journal: of the host. None: no answers are kept.
            clock: Unix seconds.
        """
        self._rewards = rewards
        self._journal = journal
        self._clock = clock
        # Batches end in threads of the scorers, at once if a scorer is closed.
        self._lock = RLock()
        self._calls: OrderedDict[CallScope, _Call] = OrderedDict()

    def add(
        self,
        scope: CallScope,
        role: str,
        responses: Mapping[int, EndedResponse],
        slice_rows: range | None,
    ) -> None:
        """Add responses that have ended, by row, and ask for the batches that they complete.

        Args:
            scope: of the call that will ask for their scores.
            role: of the call.
            responses: by row.
            slice_rows: the rows that the call will ask for together with them. None: not known.
        """
        with self._lock:
            call = self._call(scope, role)
            # The call may have overtaken the message.
            fresh = [row for row in sorted(responses) if row not in call.scored]
            call.ended |= {row: responses[row] for row in fresh}
            for reward in call.rewards:
                reward.complete.extend(reward.batches_with(fresh, call.ended, slice_rows))
                self._start_batches(call, reward)

    def take(
        self, scope: CallScope, role: str, rows: Sequence[int], questions: Sequence[Question]
    ) -> EarlyBatches:
        """Return the batches of some rows that were asked for; they are asked for early no more.

        Args:
            scope: of the call.
            role: of the call.
            rows: that it asks for.
            questions: of the rows. Batches with another one are dropped.
        """
        number_of = {row: number for number, row in enumerate(rows)}
        question_of = dict(zip(rows, questions, strict=True))
        with self._lock:
            call = self._call(scope, role)
            call.scored.update(rows)
            for row in rows:
                call.ended.pop(row, None)
            taken: dict[str, Sequence[EarlyBatch]] = {}
            for reward in call.rewards:
                reward.complete = deque(
                    batch for batch in reward.complete if call.scored.isdisjoint(batch)
                )
                own = [batch for batch in reward.started if not call.scored.isdisjoint(batch)]
                started = [(batch, reward.started.pop(batch)) for batch in own]
                taken[reward.spec.name] = [
                    EarlyBatch(tuple(number_of[row] for row in batch), one.scores, one.answers)
                    for batch, one in started
                    if [question_of.get(row) for row in batch] == one.questions
                ]
            return taken

    def take_busy(self, scope: CallScope) -> list[tuple[float, float]]:
        """Return the times in which batches of a call were in flight, start and end, and forget
        them."""
        with self._lock:
            call = self._calls.get(scope)
            if call is None:
                return []
            busy, call.busy = call.busy, []
            if call.num_in_flight:
                now = self._clock()
                busy.append((call.busy_since, now))
                call.busy_since = now
            return busy

    def _call(self, scope: CallScope, role: str) -> _Call:
        if scope not in self._calls:
            # Of a step that runs again the journal has answers: the call reads them, and asks for
            # the others together.
            is_repeated = self._journal is not None and self._journal.has_earlier(scope)
            rewards = () if is_repeated else self._rewards[role]
            self._calls[scope] = _Call(scope, [_Reward(*reward) for reward in rewards])
            while len(self._calls) > MAX_CALLS:
                _, oldest = self._calls.popitem(last=False)
                for reward in oldest.rewards:
                    reward.complete.clear()
        return self._calls[scope]

    def _start_batches(self, call: _Call, reward: _Reward) -> None:
        """Ask for batches as long as the reward can score one more at the same time."""
        # Others wait here, where the call takes them: a queue of the scorer would delay it.
        while reward.complete and reward.num_in_flight < max_batches(reward.spec):
            if reward.num_failed >= MAX_FAILED:
                reward.complete.clear()
                return
            batch = reward.complete.popleft()
            self._start(call, reward, batch)

    def _start(self, call: _Call, reward: _Reward, batch: Rows) -> None:
        responses = [call.ended[row] for row in batch]
        samples = [response.sample for response in responses]
        answers = None
        if self._journal is None:
            scores = reward.scorer.submit(samples)
        else:
            answers = self._journal.call_answers(call.scope, batch)
            request = JournaledRequest(reward.spec, samples, answers)
            scores = request.ask(reward.scorer, range(len(samples)))
        if not call.num_in_flight:
            call.busy_since = self._clock()
        call.num_in_flight += 1
        reward.num_in_flight += 1
        questions = [response.question for response in responses]
        reward.started[batch] = _Started(questions, scores, answers)
        scores.add_done_callback(lambda done: self._end(call, reward, done))

    def _end(self, call: _Call, reward: _Reward, done: Future[Scores]) -> None:
        """Record that a batch has ended, and ask for the next one."""
        with self._lock:
            reward.num_in_flight -= 1
            if not is_usable(reward.spec, done):
                reward.num_failed += 1
            self._start_batches(call, reward)
            # Only now, so that batches one after the other are one time.
            call.num_in_flight -= 1
            if not call.num_in_flight:
                call.busy = _joined([*call.busy, (call.busy_since, self._clock())])


def _joined(times: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Join the two times with the shortest gap between them, if there are too many."""
    if len(times) <= MAX_TIMES:
        return times
    gaps = [after[0] - before[1] for before, after in pairwise(times)]
    first = gaps.index(min(gaps))
    return [*times[:first], (times[first][0], times[first + 1][1]), *times[first + 2 :]]


def max_batches(reward: RewardSpec) -> int:
    """Return the number of batches that a function or service scores at the same time."""
    if reward.function is not None:
        return reward.function.processes
    if reward.environment is not None:
        return 0  # its scores are there
    assert reward.service is not None, "a model is not asked"
    return reward.service.max_concurrency
