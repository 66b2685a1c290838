"""Which jobs are to be looked at, and when: each by one worker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rlhf_operator.clients.kube.cached import Key


@dataclass
class JobQueue:
    """Jobs that wait for a look. For one event loop."""

    _ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)
    _waiting: set[Key] = field(default_factory=set)
    """Jobs in the queue, and those that come again when they are free."""
    _busy: set[Key] = field(default_factory=set)
    _timers: dict[Key, asyncio.TimerHandle] = field(default_factory=dict)
    """Looks to come."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key) -> None:
        """Look at a job as soon as a worker is free; one that is being looked at comes again."""
        self._cancel(key)
        is_new = key not in self._waiting
        self._waiting.add(key)
        if is_new and key not in self._busy:
            self._ready.put_nowait(key)

    def add_later(self, key: Key, seconds: float) -> None:
        """Look again after a while; an event before that is sooner."""
        if key in self._waiting:
            return
        self._cancel(key)
        self._timers[key] = asyncio.get_running_loop().call_later(seconds, self.add, key)

    async def take(self) -> AsyncIterator[Key]:
        """Jobs to look at; each is free again when the next is asked for."""
        while True:
            key = await self._ready.get()
            self._waiting.remove(key)
            self._busy.add(key)
            try:
                yield key
            finally:
                self._busy.discard(key)
                if key in self._waiting:
                    self._ready.put_nowait(key)

    def _cancel(self, key: Key) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
