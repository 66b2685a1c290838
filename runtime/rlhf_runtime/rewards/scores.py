"""What one verifier said about some samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.rewards.failures import MOST_NAMED, FailedSamples
from rlhf_runtime.rewards.messages import BatchScores, Fault


@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each sample, or the reason why there is none.

    values: float32, shape [samples]; 0 where not valid.
    valid: bool, shape [samples]; whether the verifier scored the sample.
    errors: how many samples have no score, by Fault.
    failures: the foremost of them in words; behind them batches that had no score together, but
        of which all samples have one alone.
    rescored: samples that were scored again one by one.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    errors: Mapping[str, int]
    failures: tuple[FailedSamples, ...] = ()
    rescored: int = 0


class Tally:
    """Collects the scores of batches, in whatever order they come."""

    def __init__(self, num_samples: int) -> None:
        """Expect so many samples in all."""
        self._values = np.zeros(num_samples, dtype=np.float32)
        self._valid = np.zeros(num_samples, dtype=np.bool_)
        self._errors: Counter[Fault] = Counter()
        self._foremost: list[FailedSamples] = []
        self._split: list[FailedSamples] = []

    @property
    def has_errors(self) -> bool:
        """Whether a sample has no score."""
        return bool(self._errors)

    def add(self, start: int, size: int, batch: BatchScores) -> None:
        """Take in the answer to a batch of `size` samples that begins at sample `start`."""
        if batch.batch_fault is not None:
            self.fail(start, size, batch.batch_fault, batch.detail)
            return
        self._values[start : start + size] = np.frombuffer(batch.values, dtype=np.float32)
        self._valid[start : start + size] = True
        for index, (fault, detail) in batch.faults.items():
            self._valid[start + index] = False
            self.fail(start + index, 1, fault, detail)

    def fail(self, start: int, size: int, fault: Fault, detail: str) -> None:
        """Mark samples as not scored; the foremost are kept in words, whichever process was first
        to answer."""
        self._errors[fault] += size
        self._foremost.append(FailedSamples(fault, start, size, detail))
        self._foremost = sorted(self._foremost, key=_start)[:MOST_NAMED]

    def split(self, start: int, size: int, fault: Fault, detail: str) -> None:
        """A batch failed whose samples are scored again one by one."""
        why = f"not one of them when it is scored alone, but together: {detail}"
        self._split.append(FailedSamples(fault, start, size, why, only_together=True))

    def scores(self) -> Scores:
        """Everything taken in so far."""
        only_together = [
            batch
            for batch in sorted(self._split, key=_start)
            if self._valid[batch.start : batch.start + batch.size].all()
        ]
        return Scores(
            self._values,
            self._valid,
            {fault.value: count for fault, count in sorted(self._errors.items())},
            tuple([*self._foremost, *only_together][:MOST_NAMED]),
            sum(batch.size for batch in self._split),
        )


_start = attrgetter("start")
