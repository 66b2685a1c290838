"""Texts, pace and sparklines that the progress displays share. Pure state, no clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

BARS = "▁▂▃▄▅▆▇█"
# End of a wait for space.
SPACE_FREE = "the disk has space again"


class Pace:
    """Estimates the remaining time from the mean time of the last steps."""

    def __init__(self, window: int = 20) -> None:
        self._seconds: deque[float] = deque(maxlen=window)

    def add(self, seconds: float) -> None:
        """Add the time of a step."""
        self._seconds.append(seconds)

    def remaining(self, steps: int) -> float | None:
        """Seconds for a number of further steps. None: no step has finished."""
        if not self._seconds:
            return None
        return max(0, steps) * math.fsum(self._seconds) / len(self._seconds)


def sparkline(values: Sequence[float], width: int) -> str:
    """A line of at most `width` bars, each the mean of its part of the finite values."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    count = min(width, len(finite))
    means = []
    for bar in range(count):
        part = finite[bar * len(finite) // count : (bar + 1) * len(finite) // count]
        means.append(math.fsum(part) / len(part))
    low, high = min(means), max(means)
    # Equal means become the lowest bar.
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((mean - low) * scale)] for mean in means)


def resumed_text(step: int) -> str:
    """The text about workers that resume from a checkpoint."""
    return f"going on from the checkpoint of step {step}"


def restart_text(number: int, seconds: float, reason: str, message: str) -> str:
    """The text about a restart of the workers and its cause."""
    when = f"in {seconds:g} s" if seconds else "at once"
    return f"restart {number} {when}, after {reason}: {message}"
