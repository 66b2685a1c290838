"""Waiting for a condition, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

# The longer the wait, the rarer the checks: they take CPU time from other processes.
MIN_PAUSE, MAX_PAUSE = 0.02, 0.25
"""Seconds between two checks."""
SHARE = 0.05
"""Pause as a share of the time waited so far."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until a condition is true; fails after `seconds`."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(min(max(SHARE * waited, MIN_PAUSE), MAX_PAUSE))
