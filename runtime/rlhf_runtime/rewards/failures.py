"""What a verifier could not score, and why. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
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


NameOf = Callable[[int], SampleName]
"""From a sample's number in a request to its name."""


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

    def __str__(self) -> str:
        row = f" to {self.row}" if self.row else ""
        return f"{self.fault.value}: {self.what}{row}: {self.detail}"

    @property
    def kind(self) -> str:
        """What it has in common with others: the fault, and of a traceback where and what was
        raised, without what was said then."""
        *_, last = self.detail.splitlines() or [""]
        frames = [line for line in self.detail.splitlines() if line.startswith("  ")]
        return "\n".join([self.fault.value, *frames, last.partition(":")[0] if frames else ""])


def numbered(index: int) -> SampleName:
    """A sample of which nothing else is known than its number in the request, from 0."""
    return SampleName(f"sample {index}")
