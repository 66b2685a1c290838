"""The work queue: which jobs to reconcile, and when. One worker at a time has a job."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rlhf_operator.clients.cached_kube import Key

MAX_PROMPT_JOBS = 250
"""Scheduled jobs up to which waits are as requested. With more of them waits grow in proportion, so
that polls of running jobs, by default one in five seconds, stay below 50 a second."""
MAX_STRETCHED_SECONDS = 60.0
"""Upper bound of a wait that is longer than requested; longer requests stay as they are."""


@dataclass
class JobQueue:
    """Jobs that wait to be reconciled. For one event loop."""

    _ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)
    _waiting: set[Key] = field(default_factory=set)
    """Jobs in `_ready`, and busy ones to be added again afterwards."""
    _busy: set[Key] = field(default_factory=set)
    """Jobs that a worker has."""
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    """Scheduled additions."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Reconcile a job as soon as possible; a busy one again when its worker is done."""
        self._cancel(key)
        is_new = key not in self._waiting
        self._waiting.add(key)
        if is_new and key not in self._busy:
            self._ready.put_nowait(key)

    def add_after(self, key: Key, seconds: float) -> None:
        """Reconcile a job after a time, unless an event comes first. Replaces an earlier time.

        With many scheduled jobs the time is longer.
        """
        # It is reconciled before that time anyway, and then sets its next time.
        if key in self._waiting:
            return
        self._cancel(key)
        wait = stretched_seconds(seconds, len(self._timers))
        self._timers[key] = asyncio.get_running_loop().call_later(wait, self.add, key)

    def add_if_idle(self, key: Key) -> None:
        """Reconcile a job as soon as possible unless a time for it is set."""
        if key not in self._timers:
            self.add(key)

    async def take(self) -> AsyncIterator[Key]:
        """Yield jobs to reconcile; a job is busy until the next one is requested."""
        while True:
            key = await self._ready.get()
            self._waiting.remove(key)
            self._busy.add(key)
            try:
                yield key
            finally:
                self._busy.discard(key)
                # Its state may have changed after this worker had read it.
                if key in self._waiting:
                    self._ready.put_nowait(key)

    def _cancel(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()


def stretched_seconds(seconds: float, num_jobs: int) -> float:
    """Return the wait of a job among many: what it requests, or up to a minute."""
    crowd = num_jobs / MAX_PROMPT_JOBS
    if crowd <= 1 or seconds >= MAX_STRETCHED_SECONDS:
        return seconds
    return min(seconds * crowd, MAX_STRETCHED_SECONDS)
