"""Which jobs are to be looked at, and when: each by one worker at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from rlhf_operator.observe import Key


@dataclass
class JobQueue:
    """Jobs that wait for a look. For one event loop."""

    _ready: asyncio.Queue[Key] = field(default_factory=asyncio.Queue)
    _waiting: dict[Key, bool] = field(default_factory=dict)
    """Jobs in the queue, and whether something changed about them."""
    _busy: set[Key] = field(default_factory=set)
    _timers: dict[Key, tuple[asyncio.TimerHandle, bool]] = field(default_factory=dict)
    """Looks to come, and whether something changed that they are for."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, key: Key, changed: bool) -> None:
        """Look at a job as soon as a worker is free; one that is being looked at comes again."""
        changed = self._cancel(key) or changed
        is_new = key not in self._waiting
        self._waiting[key] = changed or self._waiting.get(key, False)
        if is_new and key not in self._busy:
            self._ready.put_nowait(key)

    def add_later(self, key: Key, seconds: float, changed: bool = False) -> None:
        """Look again after a while; an event before that is sooner."""
        if key in self._waiting:
            return
        changed = self._cancel(key) or changed
        loop = asyncio.get_running_loop()
        self._timers[key] = (loop.call_later(seconds, self.add, key, changed), changed)

    async def take(self) -> AsyncIterator[tuple[Key, bool]]:
        """Jobs to look at, and whether something changed; each is free again when the next is
        asked for."""
        while True:
            key = await self._ready.get()
            changed = self._waiting.pop(key)
            self._busy.add(key)
            try:
                yield key, changed
            finally:
                self._busy.discard(key)
                if key in self._waiting:
                    self._ready.put_nowait(key)

    def _cancel(self, key: Key) -> bool:
        """Whether the look that does not come now was for something that changed."""
        if key not in self._timers:
            return False
        timer, changed = self._timers.pop(key)
        timer.cancel()
        return changed
