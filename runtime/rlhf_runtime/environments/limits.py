"""Requests of a conversation under its limits of time, by the event loop's clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.errors import ToolsChanged
from rlhf_runtime.environments.process_handle import (
    BadReply,
    CallAnswer,
    OnAnswer,
    ProcessHandle,
    TooLate,
)
from rlhf_runtime.environments.results import EpisodeKey, FailureKind
from rlhf_runtime.environments.returned_values import error_text, raised_text
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_source import SourceFailed, ToolRaised, ToolSource

# Of a call in messages.
SHOWN_CHARACTERS = 200


class ActionFailed(Exception):
    """An action that ends its conversation.

    is_final: True: the journal keeps it; False: it counts only if the call is completed; None: the
        next attempt tries again.
    """

    def __init__(self, kind: FailureKind, detail: str, is_final: bool | None) -> None:
        super().__init__(detail)
        self.kind, self.detail, self.is_final = kind, detail, is_final


class TimedRequests:
    """Sends requests and counts their time.

    spent: seconds of the conversation in its environment.
    """

    def __init__(self, settings: EnvironmentSettings, is_rebuild: bool = False) -> None:
        """
        Args:
            settings: with the limits.
            is_rebuild: True if the requests repeat earlier ones: their time is not the
                conversation's, and what happens is not kept.
        """
        self._settings = settings
        self._is_rebuild = is_rebuild
        self.spent = 0.0

    async def send(
        self,
        process: ProcessHandle,
        message: frames.Message,
        calls: Sequence[tuple[int, str, Mapping[str, Any]]] = (),
        on_answer: OnAnswer = lambda number, answer: None,
    ) -> frames.Message:
        """Send a request to the process and wait for its reply.

        Raises:
            ActionFailed: a limit has passed, or the user's code raised.
            ProcessEnded: the process has ended.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        numbers = [index for index, _, _ in calls]
        begin = loop.time()
        deadline = begin + self._seconds_left()
        try:
            reply = await process.request(
                message, deadline, settings.call_seconds, numbers, on_answer
            )
        except TooLate as late:
            late_call = next((call for call in calls if call[0] == late.call), None)
            raise self._too_late(message, late_call, loop.time() - begin) from None
        except BadReply as bad:
            raise ActionFailed(
                FailureKind.ENVIRONMENT_FAILED,
                f"the conversation's process sent {bad}; its connection is not for tools",
                is_final=None,
            ) from None
        finally:
            self.spent += loop.time() - begin
        if "failed" in reply:
            is_final = None if self._is_rebuild else False
            raise ActionFailed(FailureKind.ENVIRONMENT_FAILED, str(reply["failed"]), is_final)
        return reply

    async def act(
        self,
        process: ProcessHandle,
        turn: int,
        calls: Sequence[tuple[int, str, Mapping[str, Any]]],
        on_answer: OnAnswer,
    ) -> frames.Message:
        """Make calls of a turn in the process; see `send`."""
        message = {"do": "act", "turn": turn, "calls": [list(call) for call in calls]}
        return await self.send(process, message, calls, on_answer)

    async def ask_sources(
        self,
        key: EpisodeKey,
        calls: Mapping[int, ToolCall],
        sources: Mapping[str, ToolSource],
        on_answer: OnAnswer,
    ) -> None:
        """Make calls of tools outside of the process, concurrently.

        Raises:
            ActionFailed: a limit has passed, or a source failed.
            ToolsChanged: a tool is not that of the prompts.
        """
        settings, loop = self._settings, asyncio.get_running_loop()
        begin = loop.time()
        deadline = begin + self._seconds_left()
        places = asyncio.Semaphore(settings.parallel_calls)

        async def ask(index: int, call: ToolCall) -> None:
            async with places:
                limit = min(deadline, loop.time() + settings.call_seconds)
                try:
                    async with asyncio.timeout_at(limit):
                        text = await sources[call.name].call(key, call)
                except ToolRaised as error:
                    on_answer(index, CallAnswer(error_text(str(error)), is_error=True))
                except TimeoutError:
                    late_call = (index, call.name, call.arguments) if limit < deadline else None
                    raise self._too_late({"do": "act"}, late_call, loop.time() - begin) from None
                except ToolsChanged:
                    raise
                except Exception as error:
                    reason = str(error) if isinstance(error, SourceFailed) else raised_text(error)
                    detail = f"the tool {call.name} failed: {reason}"
                    raise ActionFailed(
                        FailureKind.ENVIRONMENT_FAILED, detail, is_final=False
                    ) from error
                else:
                    on_answer(index, CallAnswer(text, is_error=False))

        tasks = [asyncio.create_task(ask(index, call)) for index, call in calls.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            self.spent += loop.time() - begin

    def _seconds_left(self) -> float:
        limit = self._settings.turn_seconds
        if self._is_rebuild:
            return limit
        return max(min(limit, self._settings.episode_seconds - self.spent), 0.0)

    def _too_late(
        self,
        message: frames.Message,
        call: tuple[int, str, Mapping[str, Any]] | None,
        seconds: float,
    ) -> ActionFailed:
        """Return the failure of an action over a limit."""
        settings, is_final = self._settings, None if self._is_rebuild else True
        if call is not None:
            shown = f"{call[1]}({json.dumps(call[2])[:SHOWN_CHARACTERS]})"
            detail = f"the call {shown} took longer than callSeconds = {settings.call_seconds:g}"
            return ActionFailed(FailureKind.TOOL_DEADLINE, detail, is_final)
        if not self._is_rebuild and self.spent + seconds >= settings.episode_seconds:
            detail = (
                "the conversation's environment took longer than episodeSeconds = "
                f"{settings.episode_seconds:g} in all"
            )
            return ActionFailed(FailureKind.EPISODE_DEADLINE, detail, is_final)
        action = "the calls of a turn" if message["do"] == "act" else str(message["do"])
        detail = f"{action} took longer than turnSeconds = {settings.turn_seconds:g}"
        return ActionFailed(FailureKind.TOOL_DEADLINE, detail, is_final)
