"""Limit of the time for which a rank waits for a silent environment host."""

from __future__ import annotations

import time
from collections.abc import Callable

from rlhf_runtime.hooks import Hook


class SilenceLimit:
    """Reports progress while a rank waits, as long as an environment host may be silent.

    Tools have limits of their own. A host that is silent for longer hangs, and a rank that reports
    no progress then ends the incarnation.
    """

    def __init__(
        self, tick: Hook, seconds: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """
        Args:
            tick: reports progress.
            seconds: longest silence.
            clock: monotonic seconds.
        """
        self._tick, self._seconds, self._clock = tick, seconds, clock
        self._since = clock()

    def restart(self) -> None:
        """Begin to wait."""
        self._since = self._clock()

    def report_wait(self, has_replies: bool) -> None:
        """Report a moment of waiting as progress, unless the silence is too long.

        Args:
            has_replies: True if the host has answered in it.
        """
        if has_replies:
            self.restart()
        if self._clock() - self._since < self._seconds:
            self._tick()
