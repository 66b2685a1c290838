"""So much at a time, and every namespace in its turn."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from rlhf_operator.clients.fair_semaphore import FairSemaphore

SECONDS = 30.0


def play(scene: Callable[[FairSemaphore], Awaitable[None]], number: int = 1) -> None:
    asyncio.run(asyncio.wait_for(scene(FairSemaphore(number)), SECONDS))


async def yielded() -> None:
    """Everybody who can go on has done so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_namespace_with_many_waits_like_one_with_few() -> None:
    async def scene(turns: FairSemaphore) -> None:
        order: list[str] = []

        async def work(namespace: str) -> None:
            async with turns.acquire(namespace):
                order.append(namespace)
                await asyncio.sleep(0)

        names = ["many"] * 6 + ["few"] * 2 + ["one"]
        async with asyncio.TaskGroup() as group:
            for name in names:
                group.create_task(work(name))
        assert order == ["many", "many", "few", "one", "many", "few", "many", "many", "many"]

    play(scene)


def test_so_many_have_their_turn_at_the_same_time() -> None:
    async def scene(turns: FairSemaphore) -> None:
        inside = 0
        most = 0

        async def work() -> None:
            nonlocal inside, most
            async with turns.acquire("team"):
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= 1

        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(work())
        assert most == 3 and len(turns) == 0

    play(scene, number=3)


def test_who_does_not_wait_any_more_takes_nobodys_turn() -> None:
    async def scene(turns: FairSemaphore) -> None:
        free = asyncio.Event()
        served: list[str] = []

        async def hold() -> None:
            async with turns.acquire("team"):
                await free.wait()

        async def work(name: str) -> None:
            async with turns.acquire("team"):
                served.append(name)

        holder = asyncio.create_task(hold())
        await yielded()
        gone, left = asyncio.create_task(work("gone")), asyncio.create_task(work("left"))
        late = asyncio.create_task(work("late"))
        await yielded()
        assert len(turns) == 3
        gone.cancel()
        await yielded()
        assert len(turns) == 2
        free.set()
        left.cancel()  # at the moment at which its turn comes, or just before
        await asyncio.wait({holder, left, late})
        assert served == ["late"] and len(turns) == 0
        await work("after")
        assert served == ["late", "after"]

    play(scene)


def test_an_error_ends_a_turn() -> None:
    async def scene(turns: FairSemaphore) -> None:
        for _ in range(3):
            try:
                async with turns.acquire("team"):
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
        async with turns.acquire("team"):
            assert len(turns) == 0

    play(scene)
