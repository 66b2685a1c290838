"""Waiting for what others bring or take away: bounded, and told. The clock is the caller's."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from rlhf_runtime.hooks import Hook, nothing


@dataclass(frozen=True)
class Patience:
    """How long something is waited for, and who hears of it."""

    seconds: float
    """The longest wait."""
    tell: Callable[[str], None]
    """Told what is in the way, whenever that changes."""
    check_stop: Hook = nothing
    """Called before every look; what it raises ends the wait."""
    pause_seconds: float = 1.0
    """From one look to the next."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def until_free(self, obstacle: Callable[[], str]) -> str:
        """Wait until nothing is in the way.

        Args:
            obstacle: says what is in the way, in a line; empty: nothing is.

        Returns:
            What is in the way still; empty if nothing is.
        """
        deadline, told = self.clock() + self.seconds, ""
        while True:
            self.check_stop()
            found = obstacle()
            if not found or self.clock() >= deadline:
                return found
            if found != told:
                told = found
                self.tell(found)
            self.sleep(self.pause_seconds)
