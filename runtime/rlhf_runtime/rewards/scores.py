"""Scores and failures of one verifier."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan
from operator import attrgetter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.rewards.messages import BatchScores, RewardFault

# Maximum of failures per request that are described; all are counted.
MAX_NAMED = 5


class SampleName(NamedTuple):
    """Identifies a sample for a reader."""

    sample: str
    """The response."""
    row: str = ""
    """The row of the data that it answers; empty if unknown."""


SampleNamer = Callable[[Sequence[int]], Sequence[SampleName]]
"""Names samples by their numbers in a request."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample, or a batch of samples, without a score."""

    fault: RewardFault
    """The kind of fault."""
    what: str
    """The response; of a batch the first one."""
    row: str
    """The row of the data that it answers, by file and line; empty if unknown."""
    detail: str
    """Description of the fault, with the verifier's traceback if it raised."""
    only_together: bool = False
    """True if all samples of the batch got a score when they were scored alone."""

    def __str__(self) -> str:
        row = f" to {self.row}" if self.row else ""
        return f"{self.fault.value}: {self.what}{row}: {self.detail}"

    @property
    def kind(self) -> str:
        """Key that equal failures share: the fault, `only_together`, and of a traceback the frames
        and the exception's type, without its message."""
        *_, last = self.detail.splitlines() or [""]
        frames = [line for line in self.detail.splitlines() if line.startswith("  ")]
        fault = f"{self.fault.value}, only together" if self.only_together else self.fault.value
        return "\n".join([fault, *frames, last.partition(":")[0] if frames else ""])


@dataclass(frozen=True, slots=True)
class FailedSamples:
    """A failure whose samples have no names yet."""

    # Names need a lookup in the data's files, so only the failures that are reported get them.

    fault: RewardFault
    start: int
    """Number of the sample in the request; of a batch the number of the first one."""
    size: int
    """Number of samples."""
    detail: str
    only_together: bool = False

    def with_name(self, name: SampleName) -> Failure:
        """Return the failure with the name of its first sample."""
        batch = f"{self.size} samples, the first of them {name.sample}"
        what = name.sample if self.size == 1 else batch
        return Failure(self.fault, what, name.row, self.detail, self.only_together)


def name_by_number(numbers: Sequence[int]) -> list[SampleName]:
    """Name samples by their numbers in the request, from 0."""
    return [SampleName(f"sample {number}") for number in numbers]


@dataclass(frozen=True, slots=True)
class Scores:
    """One number per sample, or the reason for its absence.

    values: float32, shape [samples]; 0 where not valid.
    valid: bool, shape [samples]; True if the verifier scored the sample.
    abstained: bool, shape [samples]; True if the verifier abstained on the sample. Samples that are
        neither valid nor abstained have an error.
    errors: number of samples without a score, by RewardFault.
    failures: the first of them, at most MAX_NAMED; then batches that failed together although
        all their samples have a score alone.
    rescored: number of samples that were scored again one by one.
    parts: float32, shape [samples], by name of the part; NaN where a sample has no such part.
    """

    values: NDArray[np.float32]
    valid: NDArray[np.bool_]
    abstained: NDArray[np.bool_]
    errors: Mapping[str, int]
    failures: tuple[FailedSamples, ...] = ()
    rescored: int = 0
    parts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SampleScore:
    """The final score of one sample, or the reason for its absence.

    value: the score; None: it abstained, or failed.
    fault: why it failed; None: it did not.
    detail: description of the fault.
    parts: numbers of the parts that the sample has, by name.
    is_rescored: True if the sample was scored again alone.
    """

    value: float | None
    fault: RewardFault | None = None
    detail: str = ""
    parts: Mapping[str, float] = field(default_factory=dict)
    is_rescored: bool = False


OnScore = Callable[[int, SampleScore], None]
"""Receives the number of a sample in its request, and its final score."""


class Tally:
    """Collects the scores of batches, in any order."""

    def __init__(self, num_samples: int, on_score: OnScore | None = None) -> None:
        """Start with no sample scored.

        num_samples: of the request.
        on_score: called once for each sample. Default: nothing is called.
        """
        self._on_score = on_score
        self._values = np.zeros(num_samples, dtype=np.float32)
        self._valid = np.zeros(num_samples, dtype=np.bool_)
        self._abstained = np.zeros(num_samples, dtype=np.bool_)
        self._errors: Counter[RewardFault] = Counter()
        self._first: list[FailedSamples] = []
        self._split: list[FailedSamples] = []
        self._parts: dict[str, NDArray[np.float32]] = {}
        self._num_known_rescored = 0

    @property
    def has_errors(self) -> bool:
        """True if a sample could not be scored."""
        return bool(self._errors)

    @property
    def has_answers(self) -> bool:
        """True if the verifier scored a sample or abstained on one."""
        return bool(self._valid.any() or self._abstained.any())

    def add(self, start: int, size: int, batch: BatchScores) -> None:
        """Add the scores of a batch of `size` samples that begins at sample `start`."""
        if batch.batch_fault is not None:
            self.fail(start, size, batch.batch_fault, batch.detail)
            return
        self._values[start : start + size] = np.frombuffer(batch.values, dtype=np.float32)
        self._valid[start : start + size] = True
        for name, column in batch.parts.items():
            self._part(name)[start : start + size] = np.frombuffer(column, dtype=np.float32)
        for index in batch.abstained:
            self._valid[start + index] = False
            self._abstained[start + index] = True
        for index, (fault, detail) in batch.faults.items():
            self._valid[start + index] = False
            self.fail(start + index, 1, fault, detail)
        if self._on_score is not None:
            for number in range(start, start + size):
                if self._valid[number] or self._abstained[number]:
                    self._on_score(number, self._score_of(number))

    def _score_of(self, number: int) -> SampleScore:
        """Return what was said about a sample without a fault."""
        parts = {name: float(column[number]) for name, column in self._parts.items()}
        return SampleScore(
            float(self._values[number]) if self._valid[number] else None,
            parts={name: value for name, value in parts.items() if not isnan(value)},
            is_rescored=self._is_rescored(number),
        )

    def _is_rescored(self, number: int) -> bool:
        return any(batch.start <= number < batch.start + batch.size for batch in self._split)

    def add_known(self, number: int, score: SampleScore) -> None:
        """Add the score of a sample by an earlier attempt."""
        if score.is_rescored:
            self._num_known_rescored += 1
        if score.fault is not None:
            self.fail(number, 1, score.fault, score.detail)
            return
        self._valid[number] = score.value is not None
        self._abstained[number] = score.value is None
        self._values[number] = score.value or 0.0
        for name, value in score.parts.items():
            self._part(name)[number] = value

    def _part(self, name: str) -> NDArray[np.float32]:
        if name not in self._parts:
            self._parts[name] = np.full(len(self._values), np.nan, dtype=np.float32)
        return self._parts[name]

    def fail(self, start: int, size: int, fault: RewardFault, detail: str) -> None:
        """Mark samples as not scored."""
        if self._on_score is not None:
            for number in range(start, start + size):
                failed = SampleScore(None, fault, detail, is_rescored=self._is_rescored(number))
                self._on_score(number, failed)
        # Kept by position, not by arrival: the report is then the same in every run.
        self._errors[fault] += size
        self._first.append(FailedSamples(fault, start, size, detail))
        self._first = sorted(self._first, key=_start)[:MAX_NAMED]

    def split(self, start: int, size: int, fault: RewardFault, detail: str) -> None:
        """Record a failed batch whose samples are scored again one by one."""
        why = f"no sample fails when it is scored alone, but together they do: {detail}"
        self._split.append(FailedSamples(fault, start, size, why, only_together=True))

    def scores(self) -> Scores:
        """Return the scores collected so far."""
        answered = self._valid | self._abstained
        only_together = [
            batch
            for batch in sorted(self._split, key=_start)
            if answered[batch.start : batch.start + batch.size].all()
        ]
        return Scores(
            self._values,
            self._valid,
            self._abstained,
            {fault.value: count for fault, count in sorted(self._errors.items())},
            tuple([*self._first, *only_together][:MAX_NAMED]),
            sum(batch.size for batch in self._split) + self._num_known_rescored,
            self._parts,
        )


_start = attrgetter("start")
