"""BoundedWait: polls until nothing stands in the way, within a time limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rlhf_runtime.hooks import Hook, noop


@dataclass(frozen=True)
class BoundedWait:
    """The limits of a wait, and its callbacks."""

    seconds: float
    """Maximum wait."""
    report: Callable[[str], None]
    """Reports the obstacle, whenever it changes."""
    check_stop: Hook = noop
    """Called before every poll; an exception ends the wait."""
    poll_seconds: float = 1.0
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_free(self, obstacle: Callable[[], str]) -> str:
        """Wait until there is no obstacle.

        Args:
            obstacle: returns the obstacle in a line; empty: there is none.

        Returns:
            The last obstacle; empty: there is none.
        """
        deadline, reported = self.clock() + self.seconds, ""
        while True:
            self.check_stop()
            # Poll before the deadline is checked: a wait of 0 seconds polls once.
            current = obstacle()
            if not current or self.clock() >= deadline:
                return current
            if current != reported:
                reported = current
                self.report(current)
            self.sleep(self.poll_seconds)
