"""One request to score samples: what is still to be done, and what has come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores, Tally


class Request:
    """Samples cut in batches.

    pending: where the batches begin that no process has got yet.
    result: what comes of it, for who waits.
    """

    def __init__(self, samples: Sequence[Sample], batch_size: int) -> None:
        """Cut samples in batches of at most batch_size."""
        self._samples = samples
        self._batch_size = batch_size
        self._tally = Tally(len(samples))
        self._num_under_way = 0
        self.pending = deque(range(0, len(samples), batch_size))
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
        return Batch(self, self.pending.popleft())

    def put_back(self, batch: Batch) -> None:
        """A batch is pending again: nobody has begun with it."""
        self._num_under_way -= 1
        self.pending.appendleft(batch.start)

    def samples(self, start: int) -> Sequence[Sample]:
        """Those of the batch that begins at `start`."""
        return self._samples[start : start + self._batch_size]

    def answer(self, start: int, scores: BatchScores) -> None:
        """Take in what a process said about a batch."""
        self._num_under_way -= 1
        self._tally.add(start, len(self.samples(start)), scores)

    def fail(self, start: int, fault: Fault, detail: str) -> None:
        """Mark a whole batch as not scored."""
        self._num_under_way -= 1
        self._tally.fail(start, len(self.samples(start)), fault, detail)

    def scores(self) -> Scores:
        """Everything taken in so far."""
        return self._tally.scores()


class Batch(NamedTuple):
    """Samples that are scored at once."""

    request: Request
    start: int
    """The first one's number in the request."""

    @property
    def samples(self) -> Sequence[Sample]:
        """In the order of the request."""
        return self.request.samples(self.start)
