"""What a verifier could not score, and why. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rlhf_runtime.rewards.messages import Fault

MOST_NAMED = 5
"""Failures of a request that are kept in words; all are counted."""


class SampleName(NamedTuple):
    """What a person finds a sample by."""

    sample: str
    """The response."""
    row: str = ""
    """The row of the data that it answers; empty: nobody knows."""


NamesOf = Callable[[Sequence[int]], Sequence[SampleName]]
"""From samples' numbers in a request to their names."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A sample, or a batch of them, without a score."""

    fault: Fault
    """What kind of fault it is."""
    what: str
    """Which response; of a batch the first one."""
    row: str
    """The row of the data that it answers, by file and line; empty: nobody knows."""
    detail: str
    """Why, in words, with the verifier's traceback if it raised."""
    only_together: bool = False
    """Whether all of the batch have a score after all, each one alone."""

    def __str__(self) -> str:
        row = f" to {self.row}" if self.row else ""
        return f"{self.fault.value}: {self.what}{row}: {self.detail}"

    @property
    def kind(self) -> str:
        """What it has in common with others: the fault, whether there are scores after all, and of
        a traceback where and what was raised, without what was said then."""
        *_, last = self.detail.splitlines() or [""]
        frames = [line for line in self.detail.splitlines() if line.startswith("  ")]
        fault = f"{self.fault.value}, only together" if self.only_together else self.fault.value
        return "\n".join([fault, *frames, last.partition(":")[0] if frames else ""])


@dataclass(frozen=True, slots=True)
class FailedSamples:
    """The same as a Failure, before anyone has looked up what a person finds the sample by."""

    fault: Fault
    start: int
    """Number of the sample in the request; of a batch the first one's."""
    size: int
    """How many samples."""
    detail: str
    only_together: bool = False

    def named(self, name: SampleName) -> Failure:
        """With the name of the first sample."""
        of_batch = f"{self.size} samples, the first of them {name.sample}"
        what = name.sample if self.size == 1 else of_batch
        return Failure(self.fault, what, name.row, self.detail, self.only_together)


def numbered(numbers: Sequence[int]) -> list[SampleName]:
    """Samples of which nothing else is known than their numbers in the request, from 0."""
    return [SampleName(f"sample {number}") for number in numbers]
