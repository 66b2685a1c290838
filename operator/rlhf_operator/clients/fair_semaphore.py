"""Limits of concurrency that serve namespaces in turn.

A namespace with a thousand jobs delays the others by one of them at most.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FairSemaphore:
    """A semaphore that serves waiting namespaces round-robin. For one event loop."""

    limit: int
    """Holders at the same time."""
    _holders: int = 0
    _waiting: OrderedDict[str, deque[asyncio.Future[None]]] = field(default_factory=OrderedDict)
    """By namespace, the next one to serve first."""

    def __len__(self) -> int:
        """Number of waiting tasks."""
        return sum(map(len, self._waiting.values()))

    @asynccontextmanager
    async def acquire(self, namespace: str) -> AsyncIterator[None]:
        """Hold the semaphore, when it is the namespace's turn."""
        await self._enter(namespace)
        try:
            yield
        finally:
            self._leave()

    async def _enter(self, namespace: str) -> None:
        if self._holders < self.limit:
            self._holders += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(namespace, deque())
        line.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # the semaphore was handed over at the moment of the cancellation
            elif turn in line:
                line.remove(turn)
                if not line and self._waiting.get(namespace) is line:
                    del self._waiting[namespace]
            raise

    def _leave(self) -> None:
        """Hand over to the next namespace's first task, or free a slot."""
        while self._waiting:
            namespace, line = self._waiting.popitem(last=False)
            turn = line.popleft()
            if line:
                self._waiting[namespace] = line  # to the end of the round
            if not turn.cancelled():
                # The number of holders stays: the slot goes from this task to that one.
                turn.set_result(None)
                return
        self._holders -= 1


class FairThreadPool:
    """Threads that run functions of namespaces in turn."""

    # Kubernetes' client is synchronous, so every request blocks a thread.

    def __init__(self, num_threads: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, "reconcile")
        self._semaphore = FairSemaphore(num_threads)

    def __len__(self) -> int:
        """Number of waiting functions."""
        return len(self._semaphore)

    async def __call__(self, namespace: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the function's result."""
        async with self._semaphore.acquire(namespace):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._executor, function, *arguments)

    def close(self) -> None:
        """Wait for running functions; waiting ones never start."""
        self._executor.shutdown(wait=True, cancel_futures=True)
