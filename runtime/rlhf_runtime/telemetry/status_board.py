"""The report of a run as it is now: written by the driver, read by who asks for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from rlhf_api.exits import ExitCode
from rlhf_api.report import RunPhase, StatusReport

LONGEST_MESSAGE = 4096
HEARTBEAT_SECONDS = 30
"""From one report to the next while nothing else is to be told."""


class StatusBoard:
    """Holds the latest StatusReport of one start of a driver. For any number of threads."""

    def __init__(
        self, job: str, submission_id: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._told = clock()
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
        """What to tell now."""
        with self._lock:
            return self._latest

    def update(self, **changes: Any) -> None:
        """Tell something else from now on: fields of a StatusReport by their Python names.

        The sequence number grows by one. A message becomes one line, and is cut where it is too
        long. After the final report nothing changes any more.
        """
        if "message" in changes:
            changes["message"] = _as_line(changes["message"])
        with self._lock:
            if self._latest.final:
                return
            self._told = self._clock()
            before = {name: getattr(self._latest, name) for name in StatusReport.model_fields}
            sequence = self._latest.sequence + 1
            self._latest = StatusReport(**before | changes | {"sequence": sequence})

    def beat(self) -> None:
        """The driver lives, and waits for its workers: a report follows when the last one is old.

        Only the thread that drives the run calls this: what hangs must not seem to live.
        """
        if self._clock() - self._told >= HEARTBEAT_SECONDS:
            self.update()

    def end(
        self, phase: RunPhase, code: ExitCode, reason: str = "", message: str = ""
    ) -> StatusReport:
        """Make the report final, and return it."""
        self.update(phase=phase, final=True, exit_code=code, reason=reason or None, message=message)
        return self.latest

    def acknowledge(self, submission_id: str, sequence: int) -> bool:
        """Take note that a report was stored; whether it is one of this submission's.

        Only that of the final report means something: then there is nothing left to wait for.
        """
        latest = self.latest
        is_ours = submission_id == latest.submission_id and 0 <= sequence <= latest.sequence
        if is_ours and latest.final and sequence == latest.sequence:
            self._acknowledged.set()
        return is_ours

    def wait_until_acknowledged(self, seconds: float) -> bool:
        """Wait so long at most until the final report was stored somewhere; whether it was."""
        return self._acknowledged.wait(seconds)


def _as_line(text: str) -> str:
    """A text that every reader can decode: names of files may hold bytes that are no text."""
    line = " ".join(text.split())[:LONGEST_MESSAGE]
    return line.encode("utf-8", "replace").decode("utf-8")
