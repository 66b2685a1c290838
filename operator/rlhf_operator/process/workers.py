"""Takes jobs from the queue and looks at them."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from rlhf_operator.clients.kube.cached import Key
from rlhf_operator.clients.kube.protocol import Conflict, KubeError
from rlhf_operator.process.metrics import Metrics
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconciler import Reconciler

log = logging.getLogger(__name__)
LOOKS_AT_ONCE = 2048
"""Most of them wait: for their namespace's turn, or for a head."""
FIRST_RETRY_SECONDS = 1.0
LONGEST_RETRY_SECONDS = 60.0
BUG = "Bug"
"""The reason of what nobody foresaw."""


@dataclass
class Workers:
    """Some loops over one queue."""

    queue: JobQueue
    reconciler: Reconciler
    metrics: Metrics
    _failures: dict[Key, int] = field(default_factory=dict)

    async def run(self, number: int) -> None:
        """Work until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                group.create_task(self._work())

    async def _work(self) -> None:
        async for key in self.queue.take():
            await self._look(key)

    async def _look(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        begin, outcome = time.monotonic(), "done"

        def planned() -> None:
            loop.call_soon_threadsafe(self.queue.add, key)

        try:
            again = await self.reconciler.look(key, planned)
            self._failures.pop(key, None)
            if again is not None:
                self.queue.add_later(key, again)
        except Exception as error:  # one job's trouble must not end the others'
            outcome = "failed"
            self._fail(key, error)
        self.metrics.reconcile_seconds.labels(outcome).observe(time.monotonic() - begin)

    def _fail(self, key: Key, error: Exception) -> None:
        """Tell it, and look again later and later."""
        number = self._failures.get(key, 0)
        self._failures[key] = number + 1
        seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(number, 16), LONGEST_RETRY_SECONDS)
        reason = error.reason if isinstance(error, KubeError) else BUG
        self.metrics.reconcile_errors.labels(reason).inc()
        extra = {"job": "/".join(key), "reason": reason}
        if isinstance(error, Conflict):
            log.info("it changed meanwhile: looking again", extra=extra)
        elif isinstance(error, KubeError):
            log.warning("%s; looking again in %.0f s", error, seconds, extra=extra)
        else:
            log.error("looking again in %.0f s", seconds, extra=extra, exc_info=error)
        self.queue.add_later(key, seconds)
