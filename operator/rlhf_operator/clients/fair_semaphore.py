"""So much at a time, and every namespace in its turn: one with a thousand jobs must not keep others
waiting for more than one of them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class Turns:
    """A semaphore that asks those who wait by namespace, round and round. For one event loop."""

    number: int
    """How many may be in it at the same time."""
    _taken: int = 0
    _waiting: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        """Those who wait."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def turn(self, namespace: str) -> AsyncIterator[None]:
        """Wait for a turn, and have it."""
        await self._enter(namespace)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, namespace: str) -> None:
        if self._taken < self.number:
            self._taken += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(namespace, deque())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was this one's turn just now
            elif turn in line:
                line.remove(turn)
                if not line and self._waiting.get(namespace) is line:
                    del self._waiting[namespace]
            raise

    def _leave(self) -> None:
        """The next namespace's first one takes the place, if anybody waits."""
        while self._waiting:
            namespace, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[namespace] = line  # at the end of the round
            if not turn.cancelled():
                turn.set_result(None)
                return
        self._taken -= 1
