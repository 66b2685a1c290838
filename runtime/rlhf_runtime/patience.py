"""Bounded waits that report the obstacle. The clock is an argument."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rlhf_runtime.hooks import Hook, noop


@dataclass(frozen=True)
class Patience:
    """The limits of a wait, and its callbacks."""

    seconds: float
    """Maximum wait."""
    tell: Callable[[str], None]
    """Reports the obstacle, whenever it changes."""
    check_stop: Hook = noop
    """Called before every poll; an exception ends the wait."""
    pause_seconds: float = 1.0
    """Interval of polls."""
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
            current = obstacle()
            if not current or self.clock() >= deadline:
                return current
            if current != reported:
                reported = current
                self.tell(current)
            self.sleep(self.pause_seconds)
