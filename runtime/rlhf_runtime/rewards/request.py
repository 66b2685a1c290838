"""One request to score samples: its pending batches and the scores collected so far."""

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
    """Samples cut into batches.

    pending: batches that no process has started.
    result: the scores, when all batches are done.
    """

    def __init__(
        self,
        samples: Sequence[Sample],
        batch_size: int,
        limit_seconds: float = inf,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        """Cut samples into batches of at most batch_size.

        limit_seconds: how long samples of a failed batch are scored alone without success; then
            the batch's remaining samples are given up.
        clock: in seconds.
        """
        self._limit_seconds = limit_seconds
        self._clock = clock
        self._tally = Tally(len(samples))
        self._num_in_flight = 0
        self.pending = deque(
            Batch(self, start, samples[start : start + batch_size])
            for start in range(0, len(samples), batch_size)
        )
        self.result: Future[Scores] = Future()

    @property
    def has_errors(self) -> bool:
        """True if a sample could not be scored."""
        return self._tally.has_errors

    @property
    def is_done(self) -> bool:
        """True if no batch is pending or in flight."""
        return not self.pending and self._num_in_flight == 0

    def next_batch(self) -> Batch:
        """Take the first pending batch; in flight until it is recorded, fails or is put back."""
        self._num_in_flight += 1
        batch = self.pending.popleft()
        if batch.origin is not None:
            batch.origin.begin(self._clock())
        return batch

    def put_back(self, batch: Batch) -> None:
        """Make a batch pending again that no process has started."""
        self._end(batch, has_score=False)
        # At the front, so that batches stay in order.
        self.pending.appendleft(batch)

    def record(self, batch: Batch, scores: BatchScores) -> None:
        """Record the scores of a batch.

        If one sample may have caused the batch's fault, each sample becomes pending again, alone.
        """
        self._end(batch, has_score=scores.batch_fault is None and not scores.faults)
        if scores.batch_fault is not None and scores.retry_alone and len(batch.samples) > 1:
            self._split(batch, scores.batch_fault, scores.detail)
            return
        self._tally.add(batch.start, len(batch.samples), scores)
        self._give_up_after_limit(batch.origin)

    def _split(self, batch: Batch, fault: Fault, detail: str) -> None:
        # Shared by the batch's samples, to give up together.
        origin = FailedBatch(fault, detail)
        self._tally.split(batch.start, len(batch.samples), fault, detail)
        alone = [
            Batch(self, batch.start + number, [sample], origin)
            for number, sample in enumerate(batch.samples)
        ]
        # At the front and in order; `extendleft` reverses.
        self.pending.extendleft(reversed(alone))

    def _give_up_after_limit(self, origin: FailedBatch | None) -> None:
        """Give up the remaining samples of a failed batch if none got a score for too long."""
        if origin is None or origin.seconds_without_score < self._limit_seconds:
            return
        detail = f"given up with its batch, which failed: {origin.detail}"
        for batch in [batch for batch in self.pending if batch.origin is origin]:
            self.pending.remove(batch)
            self._tally.fail(batch.start, len(batch.samples), origin.fault, detail)

    def fail(self, batch: Batch, fault: Fault, detail: str) -> None:
        """Mark a complete batch as not scored."""
        self._end(batch, has_score=False)
        self._tally.fail(batch.start, len(batch.samples), fault, detail)
        self._give_up_after_limit(batch.origin)

    def _end(self, batch: Batch, has_score: bool) -> None:
        self._num_in_flight -= 1
        if batch.origin is not None:
            batch.origin.end(self._clock(), has_score)

    def scores(self) -> Scores:
        """Return the scores collected so far."""
        return self._tally.scores()


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Samples that are scored in one call."""

    request: Request
    start: int
    """Number of the first sample in the request."""
    samples: Sequence[Sample]
    """Samples in the order of the request."""
    origin: FailedBatch | None = None
    """The failed batch that its only sample comes from."""


@dataclass(slots=True, eq=False)
class FailedBatch:
    """A batch that failed, and whose samples are scored one by one."""

    fault: Fault
    detail: str
    seconds_without_score: float = 0.0
    """Time spent on its samples since one last got a score."""
    # Only time with a sample in flight counts: waiting for a free process is no failure.
    _num_in_flight: int = 0
    _counted_until: float = 0.0

    def begin(self, now: float) -> None:
        """Start the clock: a sample is in flight."""
        self._count(now)
        self._num_in_flight += 1

    def end(self, now: float, has_score: bool) -> None:
        """Stop the clock for a sample, and reset it if the sample got a score."""
        self._count(now)
        self._num_in_flight -= 1
        if has_score:
            self.seconds_without_score = 0.0

    def _count(self, now: float) -> None:
        if self._num_in_flight:
            self.seconds_without_score += now - self._counted_until
        self._counted_until = now
