"""StatusBoard: the current StatusReport of a run, written by the driver, read by the server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rlhf_api.exits import ExitCode
from rlhf_api.report import RunPhase, StatusReport

LONGEST_MESSAGE = 4096
HEARTBEAT_SECONDS = 30
"""Maximum seconds between reports without news."""


class StatusBoard:
    """The latest StatusReport of one start of a driver. Thread-safe."""

    def __init__(
        self, job: str, submission_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._updated_at = clock()
        self._lock = threading.Lock()
        self._acknowledged = threading.Event()
        self._latest = StatusReport(
            job=job,
            submission_id=submission_id,
            sequence=1,
            phase=RunPhase.START,
            step=0,
            total_steps=0,
            heartbeat_seconds=HEARTBEAT_SECONDS,
        )

    @property
    def latest(self) -> StatusReport:
        """The current report."""
        with self._lock:
            return self._latest

    def update(self, **changes: Any) -> None:
        """Change fields of the report, by their Python names.

        The sequence number grows by one. A message becomes one line of limited length. After the
        final report nothing changes.
        """
        if "message" in changes:
            changes["message"] = _as_line(changes["message"])
        with self._lock:
            if self._latest.final:
                return
            self._updated_at = self._clock()
            before = {name: getattr(self._latest, name) for name in StatusReport.model_fields}
            sequence = self._latest.sequence + 1
            self._latest = StatusReport(**before | changes | {"sequence": sequence})

    def beat(self) -> None:
        """Repeat the report if it is older than the heartbeat: the driver is alive."""
        # Only the thread that drives the run calls this: a hanging driver must not seem alive.
        if self._clock() - self._updated_at >= HEARTBEAT_SECONDS:
            self.update()

    def end(
        self, phase: RunPhase, code: ExitCode, reason: str = "", message: str = ""
    ) -> StatusReport:
        """Make the report final, and return it."""
        self.update(phase=phase, final=True, exit_code=code, reason=reason or None, message=message)
        return self.latest

    def acknowledge(self, submission_id: str, sequence: int) -> bool:
        """Note that a report was stored. Returns True if it is one of this submission."""
        # Only the final report is waited for.
        latest = self.latest
        is_ours = submission_id == latest.submission_id and 0 <= sequence <= latest.sequence
        if is_ours and latest.final and sequence == latest.sequence:
            self._acknowledged.set()
        return is_ours

    def wait_until_acknowledged(self, seconds: float) -> bool:
        """Wait until the final report is acknowledged. Returns False after `seconds`."""
        return self._acknowledged.wait(seconds)


def _as_line(text: str) -> str:
    """A text as one line that every reader can decode."""
    # File names may contain bytes that are no text.
    line = " ".join(text.split())[:LONGEST_MESSAGE]
    return line.encode("utf-8", "replace").decode("utf-8")
