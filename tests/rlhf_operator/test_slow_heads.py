"""Heads that take their time take nobody else's."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

from rlhf_api.report import StatusReport
from rlhf_operator.clients.fair_semaphore import FairThreadPool
from rlhf_operator.clients.head.addresses import HeadPod
from rlhf_operator.clients.head.http_head import HttpHeads
from rlhf_operator.clients.head.protocol import Head, Submission
from rlhf_operator.observe.ray_heads import RayHeads
from rlhf_operator.process.queue import JobQueue
from rlhf_operator.process.reconcile_workers import MAX_CONCURRENT_RECONCILES, Workers

from .direct_client import DirectClient
from .fake_head import FakeHeads
from .world import NAMESPACE, World, manifest

SLOW = 50
SECONDS = 60.0


@dataclass
class SlowHead:
    """It hears, and never answers."""

    asked: set[str] = field(default_factory=set)
    cluster: str = ""

    async def _answer(self) -> None:
        self.asked.add(self.cluster)
        await asyncio.Event().wait()

    async def submissions(self) -> tuple[Submission, ...]:
        await self._answer()
        return ()

    async def submit(self, id: str, command: Sequence[str], environment: Mapping[str, str]) -> None:
        await self._answer()

    async def stop(self, id: str) -> None:
        await self._answer()

    async def final_report(self, id: str) -> StatusReport | None:
        await self._answer()
        return None

    async def report(self) -> StatusReport | None:
        await self._answer()
        return None

    async def acknowledge(self, submission_id: str, sequence: int) -> None:
        await self._answer()


def test_a_healthy_job_is_submitted_before_any_of_fifty_slow_heads_has_answered() -> None:
    """With the operator's own queue, workers and threads, of which there are fewer than heads."""
    with FakeHeads(listens=False) as fakes:
        client = DirectClient(fakes)
        world = World(fakes, client=client)
        names = [f"slow-{number}" for number in range(SLOW)]
        for name in names:
            world.submit(manifest(name))
        world.settle()
        world.run_kuberay()
        asked: set[str] = set()

        def dial(place: HeadPod, token: str) -> Head:
            if place.cluster.startswith("slow"):
                return SlowHead(asked, place.cluster)
            return HttpHeads(fakes.route, client).head(place, token)

        async def scene() -> list[str]:
            with closing(FairThreadPool(2)) as threads:
                reconciler = world.reconciler
                reconciler.heads = RayHeads(world.identity, dial)
                reconciler.in_thread = threads
                queue = JobQueue()
                working = asyncio.create_task(
                    Workers(queue, reconciler, world.metrics).run(MAX_CONCURRENT_RECONCILES)
                )
                for name in names:
                    queue.add((NAMESPACE, name))
                while len(asked) < SLOW:
                    await asyncio.sleep(0.01)
                world.submit(manifest("healthy"))
                queue.add((NAMESPACE, "healthy"))
                while "healthy-1" not in world.clusters():
                    await asyncio.sleep(0.01)
                world.run_kuberay()
                healthy = fakes.head(NAMESPACE, "healthy-1")
                while not healthy.submitted:
                    queue.add((NAMESPACE, "healthy"))
                    await asyncio.sleep(0.01)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                return healthy.submitted

        assert asyncio.run(asyncio.wait_for(scene(), SECONDS)) == ["healthy-1-0"]
        assert len(asked) == SLOW, "all of them were asked, and none has answered"


def test_a_head_is_waited_for_so_long_only_however_much_is_asked() -> None:
    with FakeHeads(listens=False) as fakes:
        world = World(fakes, client=DirectClient(fakes))
        world.run_to_training()
        world.reconciler.heads = RayHeads(
            world.identity, lambda place, token: SlowHead(), seconds=0.05
        )
        world.wait(world.settings.unreachable_seconds + 10)
        assert world.phase()[1] == "HeadUnreachable"
