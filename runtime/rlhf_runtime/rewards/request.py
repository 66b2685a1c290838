"""One request to score samples: what is still to be done, and what has come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from time import monotonic

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
        limit_seconds: float = inf,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Cut samples in batches of at most batch_size.

        limit_seconds: how long samples of a failed batch are tried one by one without a score for
            any of them; the others of the batch are then given up.
        clock: in seconds.
        """
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._tally = Tally(len(samples))
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
        batch = self.pending.popleft()
        if batch.origin is not None:
            batch.origin.begin(self._clock())
        return batch

    def put_back(self, batch: Batch) -> None:
        """A batch is pending again: nobody has begun with it."""
        self._end(batch, has_score=False)
        self.pending.appendleft(batch)

    def answer(self, batch: Batch, scores: BatchScores) -> None:
        """Take in what a process said about a batch. Where one sample may be why none has a score,
        each of them is pending again, alone."""
        self._end(batch, has_score=scores.batch_fault is None and not scores.faults)
        if scores.batch_fault is not None and scores.by_one_sample and len(batch.samples) > 1:
            self._split(batch, scores.batch_fault, scores.detail)
            return
        self._tally.add(batch.start, len(batch.samples), scores)
        self._give_up_after_limit(batch.origin)

    def _split(self, batch: Batch, fault: Fault, detail: str) -> None:
        origin = FailedBatch(fault, detail)
        self._tally.split(batch.start, len(batch.samples), fault, detail)
        alone = [
            Batch(self, batch.start + number, [sample], origin)
            for number, sample in enumerate(batch.samples)
        ]
        self.pending.extendleft(reversed(alone))

    def _give_up_after_limit(self, origin: FailedBatch | None) -> None:
        """Give up the other samples of a failed batch where none got a score for too long."""
        if origin is None or origin.seconds_without_score < self._limit_seconds:
            return
        detail = f"given up with its batch, which failed: {origin.detail}"
        for batch in [batch for batch in self.pending if batch.origin is origin]:
            self.pending.remove(batch)
            self._tally.fail(batch.start, len(batch.samples), origin.fault, detail)

    def fail(self, batch: Batch, fault: Fault, detail: str) -> None:
        """Mark a whole batch as not scored."""
        self._end(batch, has_score=False)
        self._tally.fail(batch.start, len(batch.samples), fault, detail)
        self._give_up_after_limit(batch.origin)

    def _end(self, batch: Batch, has_score: bool) -> None:
        self._num_under_way -= 1
        if batch.origin is not None:
            batch.origin.end(self._clock(), has_score)

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
    origin: FailedBatch | None = None
    """The batch that failed, of which it is one sample."""


@dataclass(slots=True, eq=False)
class FailedBatch:
    """A batch that failed, and whose samples are tried one by one."""

    fault: Fault
    detail: str
    seconds_without_score: float = 0.0
    """For how long some of them have been tried since the last one got a score. Time in which all
    wait their turn does not count."""
    _num_under_way: int = 0
    _counted_until: float = 0.0

    def begin(self, now: float) -> None:
        """One of them is tried."""
        self._count(now)
        self._num_under_way += 1

    def end(self, now: float, has_score: bool) -> None:
        """One of them has been tried, and has a score or none."""
        self._count(now)
        self._num_under_way -= 1
        if has_score:
            self.seconds_without_score = 0.0

    def _count(self, now: float) -> None:
        if self._num_under_way:
            self.seconds_without_score += now - self._counted_until
        self._counted_until = now
