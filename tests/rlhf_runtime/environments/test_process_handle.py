"""Replies of a conversation's process."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.message_reader import MessageReader
from rlhf_runtime.environments.process_handle import ProcessHandle, TooLate
from rlhf_runtime.environments.server_handle import Forked

SECONDS = 10.0


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop that can stand still for any time."""

    jumped = 0.0

    def time(self) -> float:
        return super().time() + self.jumped


def run(main: Callable[[JumpingLoop], Awaitable[Any]]) -> Any:
    async def started() -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, JumpingLoop)
        return await main(loop)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(started())


def connected() -> tuple[socket.socket, socket.socket]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    return ours, theirs


@pytest.mark.parametrize("is_answered", [True, False])
def test_an_answer_that_came_while_the_owner_stood_still_is_in_time(is_answered: bool) -> None:
    async def main(loop: JumpingLoop) -> list[int]:
        ours, theirs = connected()
        answered, is_waiting = list[int](), asyncio.Event()

        def note(number: int, answer: object) -> None:
            answered.append(number)
            is_waiting.set()

        nothing: Any = None
        process = ProcessHandle(nothing, Forked(1, ours, nothing))
        asking = asyncio.create_task(
            process.request({}, loop.time() + 100 * SECONDS, SECONDS, [0, 1], note)
        )
        with ours, theirs:
            for reply in ({"began": 0}, {"began": 1}, answer(0)):
                frames.send(theirs, reply)
            await is_waiting.wait()
            for _ in range(2):  # until the request waits again
                await asyncio.sleep(0)
            if is_answered:
                for reply in (answer(1), {"reward": None}):
                    frames.send(theirs, reply)
            loop.jumped += 2 * SECONDS
            assert await asking == {"reward": None}
        return answered

    if is_answered:
        assert run(main) == [0, 1]
    else:
        with pytest.raises(TooLate) as late:
            run(main)
        assert late.value.call == 1


def answer(number: int) -> frames.Message:
    return {"answered": number, "text": "2", "is_error": False}


def test_a_caller_that_gives_up_loses_no_byte() -> None:
    async def main(loop: JumpingLoop) -> None:
        ours, theirs = connected()
        with ours, theirs:
            reader, content = MessageReader(ours), frames.encode({"a": 1}) + frames.encode({"b": 2})
            for cut in range(1, len(content)):
                theirs.sendall(content[:cut])
                first = reader.receive_now()
                waiting = asyncio.create_task(reader.receive())
                await asyncio.sleep(0)
                waiting.cancel()
                await asyncio.wait([waiting])
                theirs.sendall(content[cut:])
                messages = [await reader.receive() for _ in range(2 - (first is not None))]
                assert [*filter(None, [first]), *messages] == [{"a": 1}, {"b": 2}]
                assert reader.receive_now() is None

    run(main)


def test_a_closed_connection_and_a_bad_frame_are_errors() -> None:
    async def main(loop: JumpingLoop) -> None:
        ours, theirs = connected()
        with ours:
            reader = MessageReader(ours)
            with theirs:
                theirs.sendall(frames.LENGTH.pack(frames.MAX_BYTES + 1))
                with pytest.raises(frames.BadFrame):
                    await reader.receive()
            with pytest.raises(EOFError):
                await MessageReader(ours).receive()

    run(main)
