"""The owner's side of one conversation's process: requests with limits of time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.message_reader import MessageReader
from rlhf_runtime.environments.server_handle import Forked, ServerHandle

# Time for a process whose connection has closed to end by itself: its exit code says why.
EXIT_SECONDS = 5.0


class ProcessEnded(Exception):
    """The process has ended, or has closed its connection; the text says how."""


class BadReply(Exception):
    """The process sent something else than a reply; the text says what."""


class TooLate(Exception):
    """A limit of time has passed.

    call: number of the call that took too long; None: all together did.
    """

    def __init__(self, call: int | None) -> None:
        super().__init__(call)
        self.call = call


@dataclass(frozen=True)
class CallAnswer:
    """The answer to one call of a turn."""

    text: str
    is_error: bool


OnAnswer = Callable[[int, CallAnswer], None]
"""Receives the number of a call, and its answer."""


class ProcessHandle:
    """A process that serves one conversation."""

    def __init__(self, server: ServerHandle, forked: Forked) -> None:
        self._server = server
        self._forked = forked
        self._replies = MessageReader(forked.connection)

    async def request(
        self,
        message: frames.Message,
        deadline: float,
        call_seconds: float = 0.0,
        calls: Collection[int] = (),
        on_answer: OnAnswer = lambda number, answer: None,
    ) -> frames.Message:
        """Send a request and wait for its reply.

        Args:
            message: the request.
            deadline: time of the event loop's clock by which the reply must be there.
            call_seconds: limit of a call, from its begin.
            calls: numbers of the calls that the process makes.
            on_answer: called for the answer to a call.

        Raises:
            TooLate: a limit has passed.
            ProcessEnded: the process has ended.
            BadReply: it sent something else than a reply.
        """
        self._forked.is_in_use = True
        try:
            return await self._exchange(message, deadline, call_seconds, calls, on_answer)
        except TimeoutError:
            raise TooLate(None) from None
        except (EOFError, OSError):
            why = await self._server.end(self._forked, EXIT_SECONDS)
            raise ProcessEnded(why) from None
        except frames.BadFrame as error:
            raise BadReply(str(error)) from None
        finally:
            self._forked.is_in_use = False

    async def _exchange(
        self,
        message: frames.Message,
        deadline: float,
        call_seconds: float,
        calls: Collection[int],
        on_answer: OnAnswer,
    ) -> frames.Message:
        loop = asyncio.get_running_loop()
        waiting, running = set(calls), dict[int, float]()
        async with asyncio.timeout_at(deadline):
            await loop.sock_sendall(self._forked.connection, frames.encode(message))
        while True:
            # A process that floods its connection must not delay others.
            await asyncio.sleep(0)
            first = min(running, key=lambda number: running[number], default=None)
            limit = deadline if first is None else min(deadline, running[first] + call_seconds)
            try:
                async with asyncio.timeout_at(limit):
                    reply = await self._replies.receive()
            except TimeoutError:
                # This process may have stood still: what came meanwhile is not late.
                arrived = self._replies.receive_now()
                if arrived is None:
                    raise TooLate(first if limit < deadline else None) from None
                reply = arrived
            if "began" in reply:
                number = _number(reply["began"], waiting)
                waiting.remove(number)
                running[number] = loop.time()
            elif "answered" in reply:
                # Calls with wrong arguments are answered without a begin.
                number = _number(reply["answered"], waiting | running.keys())
                waiting.discard(number)
                running.pop(number, None)
                on_answer(number, _answer(reply))
            elif waiting or running:
                if "failed" in reply:
                    return reply
                raise BadReply(f"a reply before all calls were answered: {str(reply)[:200]}")
            else:
                return reply

    async def end(self) -> str:
        """Kill it and all that it has started.

        Returns:
            Description of its exit, and its last output.
        """
        return await self._server.end(self._forked)


def _number(value: object, allowed: Collection[int]) -> int:
    if not isinstance(value, int) or value not in allowed:
        raise BadReply(f"an answer to no call: {str(value)[:200]}")
    return value


def _answer(reply: frames.Message) -> CallAnswer:
    text, is_error = reply.get("text"), reply.get("is_error")
    if not isinstance(text, str) or not isinstance(is_error, bool):
        raise BadReply(f"an answer that is no text: {str(reply)[:200]}")
    return CallAnswer(text, is_error)
