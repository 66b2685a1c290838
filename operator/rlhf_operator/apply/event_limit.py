"""Limit of events: a job that changes back and forth does not fill the API server with them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from datetime import datetime

BURST = 10
"""Events of one reason about one job that are recorded at any rate."""
REFILL_SECONDS = 300.0
"""Interval of further events."""
MAX_BUCKETS = 4096
"""Number of buckets in memory: those that were used last."""


@dataclass
class EventLimit:
    """A token bucket for every job and reason."""

    # A bucket for each reason: a frequent one does not keep others from being recorded.
    _buckets: OrderedDict[tuple[str, str], tuple[float, datetime]] = field(
        default_factory=OrderedDict
    )
    """By the job's uid and the reason: tokens, and the time at which they were counted."""

    def allows(self, uid: str, reason: str, now: datetime) -> bool:
        """Take a token of a job's bucket; False if it has none."""
        tokens, counted = self._buckets.pop((uid, reason), (float(BURST), now))
        elapsed = max(0.0, (now - counted).total_seconds())
        tokens = min(float(BURST), tokens + elapsed / REFILL_SECONDS)
        is_allowed = tokens >= 1.0
        self._buckets[uid, reason] = (tokens - is_allowed, now)
        if len(self._buckets) > MAX_BUCKETS:
            self._buckets.popitem(last=False)
        return is_allowed
