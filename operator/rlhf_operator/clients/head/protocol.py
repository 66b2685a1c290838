"""The interface to a job's head, and its errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from rlhf_api.report import StatusReport


class SubmissionState(StrEnum):
    """State of a submission, in Ray's words."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    STOPPED = "STOPPED"

    @property
    def has_ended(self) -> bool:
        """True if its process has exited for good."""
        return self not in (SubmissionState.PENDING, SubmissionState.RUNNING)


@dataclass(frozen=True)
class Submission:
    """One start of a driver, as Ray's Jobs API reports it."""

    id: str
    state: SubmissionState
    exit_code: int | None = None
    """The process's, if Ray recorded it; -N: ended by signal N."""
    message: str = ""
    """Ray's own message, one line."""


class HeadUnreachable(Exception):
    """No valid answer from the head in time: try again later."""


class HeadRefused(Exception):
    """The head refuses the token: an operator with another key created it."""


class Head(Protocol):
    """The head of one cluster. Every method raises HeadUnreachable or HeadRefused."""

    async def submissions(self) -> tuple[Submission, ...]:
        """Return all submissions of this head; a new head pod starts without any."""
        ...

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start a driver on the head. One with this id that exists is left as it is."""
        ...

    async def stop(self, id: str) -> None:
        """Ask a driver to save and end (SIGTERM); returns at once. No error if it has ended."""
        ...

    async def final_report(self, id: str) -> StatusReport | None:
        """Return the final report in a submission's log. None: it has none."""
        ...

    async def report(self) -> StatusReport | None:
        """Return the running driver's report. None: no driver serves one."""
        ...

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        """Tell the driver that its final report was stored, so that it need not linger."""
        ...
