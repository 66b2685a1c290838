"""Threads for what waits for Kubernetes: its client is not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from rlhf_operator.clients.fair_semaphore import Turns


class Threads:
    """So many functions at a time, and every namespace in its turn."""

    def __init__(self, number: int) -> None:
        self._threads = ThreadPoolExecutor(number, "look")
        self._turns = Turns(number)

    def __len__(self) -> int:
        """Functions that wait for their turn."""
        return len(self._turns)

    async def __call__(self, namespace: str, function: Callable[..., Any], *arguments: Any) -> Any:
        """What the function returns."""
        async with self._turns.turn(namespace):
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, function, *arguments)

    def close(self) -> None:
        """Wait for those that run; the others are not begun."""
        self._threads.shutdown(wait=True, cancel_futures=True)
