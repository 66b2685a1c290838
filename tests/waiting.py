"""Waiting for what others do, with a limit."""

from __future__ import annotations

import time
from collections.abc import Callable

SHORTEST_PAUSE, LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two looks: the longer the wait, the rarer, for looking takes time from others."""
SHARE = 0.05
"""Of the time waited so far."""


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Poll until something holds."""
    begin = time.monotonic()
    while not condition():
        waited = time.monotonic() - begin
        assert waited < seconds, f"not within {seconds:g} s: {what}"
        time.sleep(min(max(SHARE * waited, SHORTEST_PAUSE), LONGEST_PAUSE))
