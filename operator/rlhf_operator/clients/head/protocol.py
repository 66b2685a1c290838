"""What the operator wants of a job's head; the one seam to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rlhf_api.report import StatusReport


class SubmissionState(StrEnum):
    """Ray's words for where a submission is."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def has_ended(self) -> bool:
        """Whether its process is gone for good."""
        return self not in (SubmissionState.PENDING, SubmissionState.RUNNING)


@dataclass(frozen=True)
class Submission:
    """One start of a driver, as Ray's Jobs API tells of it."""

    id: str
    state: SubmissionState
    exit_code: int | None = None
    """The process's, where Ray knows it; -N: ended by signal N."""
    message: str = ""
    """Ray's own words, a line."""


class HeadUnreachable(Exception):
    """The head did not answer in time, or not sensibly: try again later."""


class HeadRefused(Exception):
    """The head does not take the token: another operator's key made it."""


class Head(Protocol):
    """The head of one cluster. Every method raises HeadUnreachable or HeadRefused."""

    async def submissions(self) -> tuple[Submission, ...]:
        """All that it knows of; those of a head that is gone are forgotten."""
        ...

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a driver on the head. One that exists already is left as it is: adopted."""
        ...

    async def stop(self, id: str) -> None:
        """Ask a driver to save and end (SIGTERM); returns at once. One that has ended is fine."""
        ...

    async def final_report(self, id: str) -> StatusReport | None:
        """The final report in a submission's log: its last line. None: it has none."""
        ...

    async def report(self) -> StatusReport | None:
        """What the running driver reports. None: nobody serves a report (yet, or any more)."""
        ...

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        """Tell the driver that its final report was stored: it need not linger."""
        ...
