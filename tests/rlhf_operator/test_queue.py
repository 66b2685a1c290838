"""The work queue of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rlhf_operator.clients.cached_kube import Key
from rlhf_operator.process.queue import (
    MAX_PROMPT_JOBS,
    MAX_STRETCHED_SECONDS,
    JobQueue,
    stretched_seconds,
)

A: Key = ("team", "a")
B: Key = ("team", "b")
SECONDS = 30.0


def play(scene: Callable[[JobQueue], Awaitable[None]]) -> None:
    async def run() -> None:
        await asyncio.wait_for(scene(JobQueue()), SECONDS)

    asyncio.run(run())


def test_jobs_come_in_order_and_each_once() -> None:
    async def scene(queue: JobQueue) -> None:
        for key in (A, B, A, A):
            queue.add(key)
        assert len(queue) == 2
        jobs = queue.take()
        assert await anext(jobs) == A
        assert await anext(jobs) == B
        assert len(queue) == 0

    play(scene)


def test_a_job_is_with_one_worker_at_a_time() -> None:
    async def scene(queue: JobQueue) -> None:
        one, other = queue.take(), queue.take()
        queue.add(A)
        assert await anext(one) == A
        queue.add(A)
        waiting = asyncio.ensure_future(anext(other))
        queue.add(B)
        assert await waiting == B  # not A, which the first worker has
        waiting = asyncio.ensure_future(anext(other))
        await asyncio.sleep(0)
        assert not waiting.done()
        first = asyncio.ensure_future(anext(one))  # now it is free
        done, _ = await asyncio.wait({waiting, first}, return_when=asyncio.FIRST_COMPLETED)
        assert [each.result() for each in done] == [A]
        first.cancel()
        waiting.cancel()

    play(scene)


def test_a_reconcile_that_is_due_later_comes_later_and_once() -> None:
    async def scene(queue: JobQueue) -> None:
        queue.add_after(A, 3600.0)
        queue.add_after(A, 0.01)  # the newest word counts
        queue.add_after(B, 3600.0)
        jobs = queue.take()
        assert await anext(jobs) == A
        assert len(queue) == 0

    play(scene)


def test_an_event_is_sooner_than_a_reconcile_that_is_due_later() -> None:
    async def scene(queue: JobQueue) -> None:
        queue.add_after(A, 0.01)
        queue.add(A)
        queue.add_after(A, 0.01)  # it waits already
        jobs = queue.take()
        assert await anext(jobs) == A
        waiting = asyncio.ensure_future(anext(jobs))
        queue.add_after(B, 0.05)
        assert await waiting == B

    play(scene)


def test_a_worker_that_ends_gives_its_job_back() -> None:
    async def scene(queue: JobQueue) -> None:
        queue.add(A)
        jobs = queue.take()
        await anext(jobs)
        queue.add(A)
        await jobs.aclose()  # type: ignore[attr-defined]
        assert await anext(queue.take()) == A

    play(scene)


def test_waits_of_many_jobs_are_longer_and_bounded() -> None:
    assert stretched_seconds(5.0, 1) == stretched_seconds(5.0, MAX_PROMPT_JOBS) == 5.0
    assert stretched_seconds(5.0, 4 * MAX_PROMPT_JOBS) == 20.0
    assert stretched_seconds(1.0, 4 * MAX_PROMPT_JOBS) == 4.0, "what is more urgent stays so"
    assert stretched_seconds(30.0, 4 * MAX_PROMPT_JOBS) == MAX_STRETCHED_SECONDS
    assert stretched_seconds(600.0, 4 * MAX_PROMPT_JOBS) == 600.0
    # All polls together stay below a rate.
    rates = {jobs / stretched_seconds(5.0, jobs) for jobs in range(MAX_PROMPT_JOBS, 3000, 50)}
    assert max(rates) == MAX_PROMPT_JOBS / 5.0


def test_a_crowded_queue_lets_a_job_wait_for_longer() -> None:
    async def scene(queue: JobQueue) -> None:
        for number in range(2 * MAX_PROMPT_JOBS):
            queue.add_after(("team", f"job-{number}"), 3600.0)
        loop = asyncio.get_running_loop()
        begin = loop.time()
        queue.add_after(A, 0.05)
        assert await anext(queue.take()) == A
        assert loop.time() - begin >= 0.1

    play(scene)
