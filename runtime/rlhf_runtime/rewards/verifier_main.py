"""The main program of a verifier's process: loads a function and scores batches.

Ends when its owner closes the connection. What the function prints goes to the owner's log.
"""

# All that this module imports needs only the standard library, so that the process starts fast.

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence, Set, Sized
from contextlib import ExitStack
from itertools import islice
from multiprocessing.connection import Connection
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from rlhf_api.entrypoint import deferred_kind, entrypoint_from_file
from rlhf_runtime.end_with_parent import end_with
from rlhf_runtime.rewards.messages import (
    BatchScores,
    Load,
    Ready,
    RewardFault,
    Unusable,
    check_scores,
    wrong_count,
)
from rlhf_runtime.rewards.sample import Sample, declared_metric

if TYPE_CHECKING:
    import asyncio

Verifier = Callable[..., Iterable[Any] | Awaitable[Iterable[Any]]]

# Kept from the traceback's end.
MAX_TRACEBACK_CHARACTERS = 6000
# Iterable, too, but their elements are no scores, or have no order.
_NOT_SCORES = (str, bytes, bytearray, Mapping, Set)


class CannotLoad(Exception):
    """The function cannot be served; the text says why."""


class ImportRaised(CannotLoad):
    """The function's module raised while it was imported."""


def main(descriptor: int, owner_pid: int) -> None:
    """Serve the connection of a file descriptor until it closes.

    owner_pid: the process that started this one; this process ends with it.
    """
    # Before anything of the user's runs: an owner that was killed cannot end this process.
    end_with(owner_pid)
    # Processes that the verifier starts must not keep the connection open.
    os.set_inheritable(descriptor, False)
    with Connection(descriptor) as connection:
        try:
            _serve(connection)
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return  # the owner has exited


def _serve(connection: Connection) -> None:
    load: Load = connection.recv()
    try:
        verifier = load_verifier(load.entrypoint, load.parameters)
    except CannotLoad as error:
        connection.send(Unusable(str(error), has_raised=isinstance(error, ImportRaised)))
        return
    connection.send(Ready(declared_metric(verifier)))
    own = os.getpid()
    with ResultLoop() as loop:
        while True:
            samples = connection.recv()
            scores = score_batch(verifier, samples, load.parameters, loop, load.parts)
            if os.getpid() != own:
                os._exit(0)  # a child that the verifier forked has returned, too
            connection.send(scores)


def load_verifier(entrypoint: str, parameters: Mapping[str, Any]) -> Verifier:
    """Import the function that `package.module:name` names.

    Raises:
        CannotLoad: no such module or function, an exception while importing, something that cannot
            be called, or a function that does not take these parameters.
    """
    module_name, _, name = entrypoint.partition(":")
    verifier = getattr(_import(module_name, entrypoint), name, None)
    if verifier is None:
        functions = [
            key for key, value in vars(sys.modules[module_name]).items() if callable(value)
        ]
        public = ", ".join(sorted(key for key in functions if not key.startswith("_"))) or "none"
        raise CannotLoad(
            f"no function of this name in the module: got {name}, allowed {public}; correct the "
            "name"
        )
    if not callable(verifier):
        raise CannotLoad(
            f"not a function: got {name} of type {type(verifier).__name__}; name a function that "
            "takes a list of samples"
        )
    # The call of an async generator gives nothing that could be awaited or listed.
    if (kind := deferred_kind(verifier)) == "an async generator":
        raise CannotLoad(
            f"{kind}: got {name}, allowed a function or an async function that returns "
            "one number for each sample; collect the scores in a list and return it"
        )
    try:
        # Checked here, once, instead of failing on the first batch after minutes of generation.
        inspect.signature(verifier).bind([], **parameters)
    except TypeError as error:
        raise CannotLoad(
            f"the function does not take its parameters: {error}; got {name}"
            f"{inspect.signature(verifier)} and parameters {dict(parameters)}; correct one of them"
        ) from error
    except ValueError:
        pass  # a builtin without a readable signature
    loaded: Verifier = verifier
    return loaded


class ResultLoop:
    """Runs all coroutines of a process on one event loop. Use it as a context manager."""

    # One loop: clients and locks that a function keeps between batches belong to the loop that
    # they were made on.

    def __init__(self) -> None:
        self._resources = ExitStack()
        self._runner: asyncio.Runner | None = None

    def __enter__(self) -> ResultLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self._resources.close()

    def wait_for(self, result: Awaitable[Any]) -> Any:
        """Return what an awaitable results in, or raise its error."""
        return self._start().run(_result_of(result))

    def _start(self) -> asyncio.Runner:
        if self._runner is None:
            # Imported here: most verifiers need none, and their processes start faster without.
            import asyncio

            self._runner = self._resources.enter_context(asyncio.Runner())
        return self._runner


async def _result_of(result: Awaitable[Any]) -> Any:
    return await result


def score_batch(
    verifier: Verifier,
    samples: Sequence[Sample],
    parameters: Mapping[str, Any],
    loop: ResultLoop,
    parts: Mapping[str, float] | None = None,
) -> BatchScores:
    """Call the function and check its result; any exception becomes a fault.

    loop: awaits the result of an async function.
    parts: weights of the parts that it returns, by name. None or empty: it returns numbers.
    """
    try:
        result = verifier(samples, **parameters)
        if inspect.isawaitable(result):
            result = loop.wait_for(result)
        values = None if isinstance(result, _NOT_SCORES) else _all_values(result, len(samples))
    except BaseException as error:  # also SystemExit: a verifier must not end the process
        trace = _user_traceback(error)
        return BatchScores(batch_fault=RewardFault.RAISED, detail=trace, retry_alone=True)
    if values is None:
        return wrong_count(type(result).__name__, len(samples))
    return check_scores(values, len(samples), parts)


def _all_values(result: Iterable[Any], num_samples: int) -> list[Any]:
    """Return the elements of a result; of a generator at most one too many.

    Raises:
        TypeError: the result has no elements.
    """
    try:
        values = iter(result)
    except TypeError:
        raise TypeError(wrong_count(type(result).__name__, num_samples).detail) from None
    # A generator may never end.
    limit = None if isinstance(result, Sized) else num_samples + 1
    return list(islice(values, limit))


def _import(name: str, entrypoint: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and _is_same_or_parent(error.name, name):
            if meant := entrypoint_from_file(entrypoint):
                raise CannotLoad(
                    f"a file in the place of a module: got {name}, allowed package.module:name; "
                    f"did you mean {meant}?"
                ) from error
            raise CannotLoad(
                f"no such module: got {name}, which is not on the Python path; correct the name or "
                "bring the code with spec.code"
            ) from error
        raise ImportRaised(
            f"the module cannot be imported: got {name}, which raised\n{_user_traceback(error)}"
        ) from error


def _is_same_or_parent(missing: str | None, name: str) -> bool:
    """True if the missing module is the requested one or a package that contains it."""
    return missing is not None and (name == missing or name.startswith(f"{missing}."))


def _user_traceback(error: BaseException) -> str:
    """Format the traceback without the frames of this file, of the import system and of asyncio."""
    frames = error.__traceback__
    while frames is not None and _is_own(frames.tb_frame):
        frames = frames.tb_next
    lines = traceback.format_exception(type(error), error, frames)
    return "".join(lines).rstrip()[-MAX_TRACEBACK_CHARACTERS:]


def _is_own(frame: FrameType) -> bool:
    filename = frame.f_code.co_filename
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return (
        filename in (__file__, importlib.__file__)
        or "importlib._" in filename
        or package == "asyncio"
    )
