"""One request to score samples: what is still to be done, and what has come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from time import monotonic

from rlhf_runtime.rewards.failures import NameOf, numbered
from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores, Tally


class Request:
    """Samples cut in batches.

    pending: the batches that no process has got yet.
    result: what comes of it, for who waits.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        name_of: NameOf = numbered,
        limit_seconds: float = inf,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Cut samples in batches of at most batch_size.

        name_of: what a person finds a sample by, from its number.
        limit_seconds: how long samples of a failed batch are tried one by one, as long as none of
            them has a score.
        clock: in seconds.
        """
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._tally = Tally(len(samples), name_of)
        self._num_under_way = 0
        self.pending = deque(
            Batch(self, start, samples[start : start + batch_size])
            for start in range(0, len(samples), batch_size)
        )
        self.result: Future[Scores] = Future()

    @property
    def has_errors(self) -> bool:
        """Whether a sample could not be scored."""
        return self._tally.has_errors

    @property
    def is_over(self) -> bool:
        """Whether every batch has been answered or failed, or was taken out of pending."""
        return not self.pending and self._num_under_way == 0

    def next_batch(self) -> Batch:
        """The first of those pending; it is not over before it is answered or fails."""
        self._num_under_way += 1
        return self.pending.popleft()

    def put_back(self, batch: Batch) -> None:
        """A batch is pending again: nobody has begun with it."""
        self._num_under_way -= 1
        self.pending.appendleft(batch)

    def answer(self, batch: Batch, scores: BatchScores) -> None:
        """Take in what a process said about a batch. Where one sample may be why none has a score,
        each of them is pending again, alone."""
        self._num_under_way -= 1
        if scores.batch_fault is not None and scores.by_one_sample and len(batch.samples) > 1:
            self._take_apart(batch, scores.batch_fault, scores.detail)
            return
        self._tally.add(batch.start, len(batch.samples), scores)
        if batch.whole is not None:
            has_score = scores.batch_fault is None and not scores.faults
            self._give_up_after_limit(batch.whole, has_score)

    def _take_apart(self, batch: Batch, fault: Fault, detail: str) -> None:
        whole = FailedBatch(fault, detail, self._clock())
        self._tally.take_apart(batch.start, len(batch.samples), fault, detail)
        alone = [
            Batch(self, batch.start + number, [sample], whole)
            for number, sample in enumerate(batch.samples)
        ]
        self.pending.extendleft(reversed(alone))

    def _give_up_after_limit(self, whole: FailedBatch, has_score: bool) -> None:
        """Give up the other samples of a failed batch where none has a score for too long."""
        whole.has_score |= has_score
        if whole.has_score or self._clock() - whole.since < self._limit_seconds:
            return
        for batch in [batch for batch in self.pending if batch.whole is whole]:
            self.pending.remove(batch)
            self._tally.fail(batch.start, len(batch.samples), whole.fault, whole.detail)

    def fail(self, batch: Batch, fault: Fault, detail: str) -> None:
        """Mark a whole batch as not scored."""
        self._num_under_way -= 1
        self._tally.fail(batch.start, len(batch.samples), fault, detail)
        if batch.whole is not None:
            self._give_up_after_limit(batch.whole, has_score=False)

    def scores(self) -> Scores:
        """Everything taken in so far."""
        return self._tally.scores()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples that are scored at once."""

    request: Request
    start: int
    """The first one's number in the request."""
    samples: Sequence[Sample]
    """In the order of the request."""
    whole: FailedBatch | None = None
    """The batch that failed, of which it is one sample."""


@dataclass(slots=True, eq=False)
class FailedBatch:
    """A batch that failed, and whose samples are tried one by one."""

    fault: Fault
    detail: str
    since: float
    """When it failed, by the request's clock."""
    has_score: bool = False
    """Whether one of them has a score."""
