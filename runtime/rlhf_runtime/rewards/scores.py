"""What one verifier said about some samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.rewards.messages import BatchScores, Fault


@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each sample, or the reason why there is none.

    values: float32, shape [samples]; 0 where not valid.
    valid: bool, shape [samples]; whether the verifier scored the sample.
    errors: how many samples have no score, by Fault.
    first_error: the first fault in words, with the verifier's traceback if it raised.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    errors: Mapping[str, int]
    first_error: str | None


class Tally:
    """Collects the scores of batches, in whatever order they come."""

    def __init__(self, num_samples: int) -> None:
        """Expect so many samples in all."""
        self._values = np.zeros(num_samples, dtype=np.float32)
        self._valid = np.zeros(num_samples, dtype=np.bool_)
        self._errors: Counter[str] = Counter()
        self._first_error: tuple[int, str] | None = None

    @property
    def has_errors(self) -> bool:
        """Whether a sample has no score."""
        return bool(self._errors)

    def add(self, start: int, size: int, batch: BatchScores) -> None:
        """Take in the answer to a batch of `size` samples that begins at sample `start`."""
        if batch.batch_fault is not None:
            self.fail(start, size, batch.batch_fault, batch.detail or "")
            return
        self._values[start : start + size] = np.frombuffer(batch.values, dtype=np.float32)
        self._valid[start : start + size] = True
        for index, fault in batch.faults.items():
            self._valid[start + index] = False
            self._note(start, 1, fault, batch.detail or "")

    def fail(self, start: int, size: int, fault: Fault, detail: str) -> None:
        """Mark a whole batch as not scored."""
        self._note(start, size, fault, detail)

    def scores(self) -> Scores:
        """Everything taken in so far."""
        first = None if self._first_error is None else self._first_error[1]
        return Scores(self._values, self._valid, dict(sorted(self._errors.items())), first)

    def _note(self, start: int, count: int, fault: Fault, detail: str) -> None:
        """Count faults and keep the text of the foremost, whichever process was first to answer."""
        self._errors[fault.value] += count
        if self._first_error is None or start < self._first_error[0]:
            self._first_error = (start, f"{fault.value}: {detail}")
