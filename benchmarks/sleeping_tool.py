"""The environment of bench-conversations: a tool that takes its time."""

from __future__ import annotations

import time


class Sleeper:
    """Answers after some seconds."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    def wait(self, number: int) -> str:
        """Answer later.

        Args:
            number: any.
        """
        time.sleep(self._seconds)
        return str(number)
