"""The main loop of a conversation's process: one object, whose methods are called on request.

Requests and replies are messages of `frames.py`. Standard library only.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import random
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any

from rlhf_runtime.environments import frames
from rlhf_runtime.environments.environment_class import REWARD_ATTRIBUTE, Environment, is_async
from rlhf_runtime.environments.returned_values import (
    BadValue,
    answer_text,
    error_text,
    observation_text,
    raised_text,
    restored_snapshot,
    reward_value,
    shorten,
    snapshot_value,
    turn_reward_value,
    user_traceback,
)
from rlhf_runtime.environments.settings import EnvironmentSettings
from rlhf_runtime.environments.tool_schema import BadArguments, Tool

Request = Mapping[str, Any]


class ConversationProcess:
    """Serves the requests about one conversation, in its own process."""

    def __init__(
        self,
        connection: socket.socket,
        environments: Mapping[str, Environment],
        settings: EnvironmentSettings,
    ) -> None:
        self._connection = connection
        self._environments = environments
        self._settings = settings
        self._environment = next(iter(environments.values()))
        self._object: Any = None
        self._seed = ""
        self._turn = 0
        self._process_id = os.getpid()
        # One loop: clients and locks that an object keeps belong to the loop they were made on.
        self._runner: asyncio.Runner | None = None

    def serve(self) -> None:
        """Serve until the owner closes the connection."""
        actions = {
            "reset": self._reset,
            "restore": self._restore,
            "act": self._act,
            "reward": self._reward,
        }
        while True:
            request, _ = frames.receive(self._connection)
            try:
                reply = actions[request["do"]](request)
            except BaseException as error:  # also SystemExit: it must not end the process
                reply = {"failed": user_traceback(error)}
            self._send(reply)

    def _send(self, message: frames.Message) -> None:
        if os.getpid() != self._process_id:
            os._exit(0)  # a child that the user's code forked has returned, too
        frames.send(self._connection, message)

    def _construct(self, request: Request) -> None:
        self._environment = self._environments[request["environment"]]
        self._seed = request["seed"]
        self._seed_numbers("begin")
        if self._environment.kind is not None:
            self._object = self._environment.kind(**self._environment.parameters)

    def _seed_numbers(self, purpose: str) -> None:
        """Seed global generators, so that a rebuilt conversation draws the same numbers."""
        # Before every call: earlier ones may not be repeated.
        digest = blake2b(f"{self._seed} {purpose}".encode(), digest_size=8).digest()
        random.seed(digest)
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed(int.from_bytes(digest[:4], "big"))

    def _reset(self, request: Request) -> frames.Message:
        self._construct(request)
        observation = None
        if self._environment.has("reset"):
            arguments = _arguments_of_reset(self._object.reset, request["row"])
            value = self._finish(self._object.reset(**arguments))
            observation = observation_text(value, self._settings.answer_characters)
        return {"observation": observation, **self._snapshot()}

    def _restore(self, request: Request) -> frames.Message:
        self._construct(request)
        self._finish(self._object.restore(restored_snapshot(request["snapshot"])))
        return {}

    def _act(self, request: Request) -> frames.Message:
        self._turn = request["turn"]
        self._run_calls(request["calls"])
        reward = None
        if self._environment.has("turn_reward"):
            self._seed_numbers(f"turn {self._turn} reward")
            reward = turn_reward_value(self._finish(self._object.turn_reward()))
        return {"reward": reward, **self._snapshot()}

    def _reward(self, request: Request) -> frames.Message:
        self._seed_numbers("end")
        name = self._environment.reward_method
        if name is not None:
            value = self._finish(getattr(self._object, name)())
        else:
            name, value = REWARD_ATTRIBUTE, getattr(self._object, REWARD_ATTRIBUTE, None)
        return {"reward": reward_value(value, name)}

    def _snapshot(self) -> frames.Message:
        if not self._environment.has("snapshot"):
            return {}
        return {"snapshot": snapshot_value(self._finish(self._object.snapshot()))}

    def _run_calls(self, calls: Sequence[tuple[int, str, Mapping[str, Any]]]) -> None:
        """Run calls in order; async ones that follow one another run concurrently."""
        concurrent: list[tuple[int, Callable[[], Any]]] = []
        for index, name, arguments in calls:
            try:
                tool, function = self._tool(name)
                call = partial(function, **tool.convert(arguments))
            except BadArguments as error:
                self._answer(index, error_text(str(error)), is_error=True)
                continue
            if is_async(function):
                concurrent.append((index, call))
                continue
            self._run_concurrently(concurrent)
            concurrent = []
            self._run_call(index, call)
        self._run_concurrently(concurrent)

    def _tool(self, name: str) -> tuple[Tool, Callable[..., Any]]:
        if name in self._environment.methods:
            return self._environment.methods[name], getattr(self._object, name)
        if name in self._environment.functions:
            return self._environment.functions[name]
        names = [*self._environment.methods, *self._environment.functions]
        raise BadArguments(f"there is no tool {name}; allowed: {', '.join(names)}")

    def _run_call(self, index: int, call: Callable[[], Any]) -> None:
        self._begin(index)
        try:
            value = self._finish(call())
        except BaseException as error:  # also SystemExit
            self._answer(index, raised_text(error), is_error=True)
        else:
            self._answer_with(index, value)

    def _run_concurrently(self, calls: Sequence[tuple[int, Callable[[], Any]]]) -> None:
        if calls:
            self._wait_for(self._all_of(calls))

    async def _all_of(self, calls: Sequence[tuple[int, Callable[[], Any]]]) -> None:
        places = asyncio.Semaphore(self._settings.parallel_calls)

        async def run(index: int, call: Callable[[], Any]) -> None:
            async with places:
                self._begin(index)
                try:
                    value = await call()
                except BaseException as error:  # also SystemExit
                    self._answer(index, raised_text(error), is_error=True)
                else:
                    self._answer_with(index, value)

        await asyncio.gather(*(run(index, call) for index, call in calls))

    def _begin(self, index: int) -> None:
        self._send({"began": index})
        self._seed_numbers(f"turn {self._turn} call {index}")

    def _answer_with(self, index: int, value: Any) -> None:
        try:
            self._answer(index, answer_text(value), is_error=False)
        except BadValue as error:
            self._answer(index, error_text(str(error)), is_error=True)

    def _answer(self, index: int, text: str, is_error: bool) -> None:
        text = shorten(text, self._settings.answer_characters)
        self._send({"answered": index, "text": text, "is_error": is_error})

    def _finish(self, value: Any) -> Any:
        """Return a value; of an async method what it results in."""
        return self._wait_for(value) if inspect.isawaitable(value) else value

    def _wait_for(self, result: Awaitable[Any]) -> Any:
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(_result_of(result))


async def _result_of(result: Awaitable[Any]) -> Any:
    return await result


def _arguments_of_reset(reset: Callable[..., Any], row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the columns of a row that `reset` takes.

    Raises:
        BadValue: it needs a column that the row does not have.
    """
    parameters = inspect.signature(reset).parameters.values()
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    missing = [one.name for one in named if one.default is one.empty and one.name not in row]
    if missing:
        raise BadValue(
            f"reset needs a column that the row does not have: got {', '.join(sorted(row))}, "
            f"allowed rows with {missing[0]}; add the column, or a default to the argument"
        )
    if any(one.kind is one.VAR_KEYWORD for one in parameters):
        return row
    names = {one.name for one in named}
    return {name: value for name, value in row.items() if name in names}
