"""SpaceWait: repeats a write until a full disk has space, within a time limit."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.errors import RlhfError
from rlhf_runtime.controller.stop import StopRequest
from rlhf_runtime.disk_space import free_bytes, is_disk_full
from rlhf_runtime.errors import NoSpace
from rlhf_runtime.hooks import Hook, noop

# Interval of looks at the free space.
POLL_SECONDS = 1.0
# Interval of attempts while free space does not grow: quotas are not visible in it.
RETRY_SECONDS = 300.0
# Growth of free space that is worth another attempt. Smaller ones are other processes' logs.
MIN_GROWTH = 1.25


def grew(free: int, before: int) -> bool:
    """True if free space, in bytes, grew enough since an attempt that found too little."""
    return free > before * MIN_GROWTH


@dataclass
class SpaceWait:
    """Waits for space on the disk of the run's folder.

    Nothing is lost meanwhile: the driver stays in the middle of its work, and the workers keep
    their weights.
    """

    seconds: float
    """Maximum length of a wait; 0: none."""
    folder: Path
    """The run's folder."""
    stop: StopRequest
    report: Callable[[str], None]
    """Called with a text when a wait begins, and with an empty one when it is over."""
    report_alive: Hook = noop
    """Called every second."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_written(self, write: Callable[[], object]) -> None:
        """Write; repeat that while the disk is full.

        Args:
            write: safe to repeat after it has failed.

        Raises:
            NoSpace: the disk is still full at the end of the wait, or a stop was requested.
            RlhfError, OSError: `write` failed otherwise.
        """
        deadline = self.clock() + self.seconds
        is_waiting = False
        while True:
            free = self._free_bytes()
            try:
                write()
                break
            except (RlhfError, OSError) as error:
                if not is_disk_full(error) or isinstance(error, NoSpace):
                    raise
                if self.stop.requested or self.clock() >= deadline:
                    raise self._no_space(error) from error
                if not is_waiting:
                    is_waiting = True
                    self.report(f"waiting up to {self.seconds:g} s for space: {_words(error)}")
            self._await_change(free, deadline)
        if is_waiting:
            self.report("")

    def _await_change(self, free: int, deadline: float) -> None:
        """Wait until another attempt may succeed, the deadline, or a request to stop."""
        end = min(deadline, self.clock() + RETRY_SECONDS)
        # What an attempt wrote is deleted when it fails, so its own space is free again.
        while self.clock() < end and not self.stop.requested:
            self.sleep(POLL_SECONDS)
            self.report_alive()
            if grew(self._free_bytes(), free):
                return

    def _free_bytes(self) -> int:
        with suppress(OSError):
            return free_bytes(self.folder)
        # A deleted folder is found by the next attempt, which should not be late.
        return sys.maxsize

    def _no_space(self, error: Exception) -> NoSpace:
        end = "a stop was requested" if self.stop.requested else f"after {self.seconds:g} s"
        return NoSpace(
            f"the disk is full, {end} (failurePolicy.spaceDeadlineSeconds): {_words(error)}"
        )


def _words(error: Exception) -> str:
    name = error.reason if isinstance(error, RlhfError) else type(error).__name__
    return f"{name}: {error}"
