"""One request to score samples: what is still to be done, and what has come back."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from rlhf_runtime.rewards.messages import BatchScores, Fault
from rlhf_runtime.rewards.sample import Sample
from rlhf_runtime.rewards.scores import Scores, Tally


class Request:
    """Samples cut in batches.

    pending: where the batches begin that no process has got yet.
    """

    def __init__(self, samples: Sequence[Sample], batch_size: int) -> None:
        """Cut samples in batches of at most batch_size."""
        self._samples = samples
        self._batch_size = batch_size
        self._tally = Tally(len(samples))
        self.pending = deque(range(0, len(samples), batch_size))

    @property
    def has_errors(self) -> bool:
        """Whether a sample could not be scored."""
        return self._tally.has_errors

    def batch(self, start: int) -> Sequence[Sample]:
        """The samples of the batch that begins at `start`."""
        return self._samples[start : start + self._batch_size]

    def answer(self, start: int, scores: BatchScores) -> None:
        """Take in what a process said about a batch."""
        self._tally.add(start, len(self.batch(start)), scores)

    def fail(self, start: int, fault: Fault, detail: str) -> None:
        """Mark a whole batch as not scored."""
        self._tally.fail(start, len(self.batch(start)), fault, detail)

    def scores(self) -> Scores:
        """Everything taken in so far."""
        return self._tally.scores()
