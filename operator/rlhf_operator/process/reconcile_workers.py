"""Workers that take jobs from the queue and reconcile them."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from rlhf_kube.errors import Conflict, KubeError, NotFound
from rlhf_operator.clients.cached_kube import Key
from rlhf_operator.decide.api_errors import operator_reason
from rlhf_operator.process.leadership import NotLeading
from rlhf_operator.process.metrics import Metrics
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconciler import Reconciler

log = logging.getLogger(__name__)
MAX_CONCURRENT_RECONCILES = 2048
"""Many, as most of them wait: for their namespace's turn, or for a head."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
STANDBY_SECONDS = 2.0
"""Wait while another replica may act."""
BUG = "Bug"
"""Reason of unexpected errors."""


@dataclass
class Workers:
    """Concurrent loops over one queue."""

    queue: JobQueue
    reconciler: Reconciler
    metrics: Metrics
    _failures: dict[Key, int] = field(default_factory=dict)
    """Failures in a row, by job."""

    async def run(self, number: int) -> None:
        """Run this many workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(number):
                group.create_task(self._work())

    async def _work(self) -> None:
        async for key in self.queue.take():
            await self._reconcile(key)

    async def _reconcile(self, key: Key) -> None:
        loop = asyncio.get_running_loop()
        begin, outcome = time.monotonic(), "done"

        def on_planned() -> None:
            loop.call_soon_threadsafe(self.queue.add, key)

        try:
            requeue_after = await self.reconciler.reconcile(key, on_planned)
            self._failures.pop(key, None)
            if requeue_after is not None:
                self.queue.add_after(key, requeue_after)
        except NotLeading:
            self.queue.add_after(key, STANDBY_SECONDS)
            return
        except Exception as error:  # an error of one job must not end the worker
            outcome = "failed"
            self._retry_later(key, error)
        self.metrics.reconcile_seconds.labels(outcome).observe(time.monotonic() - begin)

    def _retry_later(self, key: Key, error: Exception) -> None:
        number = self._failures.get(key, 0)
        # Doubles per failure in a row, so that a permanent error does not load the API server.
        self._failures[key] = number + 1
        seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(number, 16), MAX_RETRY_SECONDS)
        reason = operator_reason(error) if isinstance(error, KubeError) else BUG
        self.metrics.reconcile_errors.labels(reason).inc()
        extra = {"job": "/".join(key), "reason": reason}
        if isinstance(error, Conflict | NotFound):
            log.info("the job has changed meanwhile: reconciling again", extra=extra)
        elif isinstance(error, KubeError):
            log.warning("%s; reconciling again in %.0f s", error, seconds, extra=extra)
        else:
            log.error("reconciling again in %.0f s", seconds, extra=extra, exc_info=error)
        self.queue.add_after(key, seconds)
