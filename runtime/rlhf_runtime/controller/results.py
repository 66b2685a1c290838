"""Results of workers as they arrive, and their errors without Ray's wrapping."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
    UnserializableException,
    WorkerCrashedError,
)

from rlhf_api.errors import RlhfError
from rlhf_runtime.calls.out_of_memory import is_out_of_memory
from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.errors import OutOfMemory, WorkerLost, WorkerRaised
from rlhf_runtime.hooks import Hook, noop

# Interval of checks while the driver waits for workers.
POLL_SECONDS = 5.0
# Terminal colours in Ray's stacks.
COLOR_CODES = re.compile(r"\x1b\[[0-9;]*m")
# Time for a death to become known after another worker noticed it in a collective.
DEATH_SECONDS = 10.0


def wait_for(references: Sequence[Any], poll: Hook = noop) -> list[Any]:
    """Return the values of references in order; raise the first error of any at once.

    Args:
        references: to results.
        poll: called every few seconds; an exception from it ends the wait.

    Raises:
        RlhfError: raised by a worker.
        WorkerRaised: a worker raised another error.
        WorkerLost: a worker died.
    """
    while True:
        try:  # raises with the first error of any
            values: list[Any] = ray.get(list(references), timeout=POLL_SECONDS)
            return values
        except GetTimeoutError:
            poll()
        except RayError as error:
            meaning = unwrap_error(error)
            # A death makes other workers raise in their collectives, often before Ray reports the
            # death.
            if isinstance(meaning, WorkerRaised):
                meaning = _death_among(list(dict.fromkeys(references))) or meaning
            raise meaning from None


def wait_for_end(references: Sequence[Any], poll: Hook = noop) -> None:
    """Wait until the calls behind references have ended, with or without errors.

    Args:
        references: to results.
        poll: called every few seconds; an exception from it ends the wait.
    """
    pending = list(references)
    while pending:
        _, pending = ray.wait(pending, num_returns=len(pending), timeout=POLL_SECONDS)
        if pending:
            poll()


def iterate_completed(groups: Mapping[str, Sequence[Any]], poll: Hook = noop) -> Iterator[str]:
    """Yield the names of groups of references as their values become complete.

    Args:
        groups: references by name.
        poll: called every few seconds; an exception from it ends the wait.

    Raises:
        RlhfError: as `wait_for`, with the first error of any group.
    """
    everything = list(dict.fromkeys(chain.from_iterable(groups.values())))
    waiting = dict(groups)
    pending = everything
    while waiting:
        ready, pending = ray.wait(pending, num_returns=1, timeout=POLL_SECONDS)
        if not ready:
            poll()
        try:
            ray.get(ready)
        except RayError:
            wait_for(everything)
        done = [name for name, group in waiting.items() if not set(group) & set(pending)]
        for name in done:
            del waiting[name]
            yield name


def unwrap_error(error: RayError) -> RlhfError:
    """Return the original error behind Ray's errors, also if workers passed it on."""
    cause: BaseException = error
    while isinstance(cause, RayTaskError) and isinstance(cause.cause, BaseException):
        cause = cause.cause
    if isinstance(cause, RlhfError):
        return cause
    if isinstance(cause, RayActorError | WorkerCrashedError):
        return WorkerLost(_death_text(cause))
    if is_out_of_memory(cause):
        return OutOfMemory(
            f"a worker ran out of memory: got {type(cause).__name__}: {cause}; use more devices, "
            "or a machine with more memory; `rlhf plan` shows what was expected"
        )
    if isinstance(error, RayTaskError):
        stack = COLOR_CODES.sub("", str(error))
        text = f"a worker raised {type(cause).__name__}: {cause}\n{stack}"
        return with_cause(WorkerRaised(text), cause)
    if isinstance(error, UnserializableException):
        return WorkerRaised(_raised_text(error))
    return WorkerLost(_death_text(error))


def _raised_text(error: UnserializableException) -> str:
    """Describe an error that could not be unpickled: its last line, then the worker's stack."""
    # Some errors with arguments of their own cannot be unpickled.
    _, _, sent = str(error).partition("Original exception:\n")
    stack = COLOR_CODES.sub("", sent).strip()
    return f"a worker raised {stack.splitlines()[-1].strip() if stack else error}\n{stack}"


def _death_text(error: RayError) -> str:
    """Describe a death: the worker and Ray's explanation."""
    # Ray lists properties on lines of their own; its first line only says that somebody died.
    lines = str(error).strip().splitlines()
    properties: dict[str, str] = {}
    for line in lines:
        if match := re.fullmatch(r"\t(\w+): (.*)", line):
            properties[match[1]] = match[2]
    who = properties.get("name", "").partition(" in ")[0] or "a worker"
    process = f" (process {properties['pid']})" if "pid" in properties else ""
    details = [line for line in lines if not line.startswith("\t")]
    said, _, _ = "\n".join(details[1:] or details).partition(" Some common causes")
    return f"{who}{process} died: {said}"


def _death_among(references: list[Any]) -> RlhfError | None:
    """Return the death, or RlhfError, that a reference yields within a moment; None if there is
    none."""
    deadline = time.monotonic() + DEATH_SECONDS
    while references and (seconds := deadline - time.monotonic()) > 0:
        ready, references = ray.wait(references, num_returns=1, timeout=seconds)
        for reference in ready:
            try:
                ray.get(reference)
            except RayError as error:
                meaning = unwrap_error(error)
                if not isinstance(meaning, WorkerRaised):
                    return meaning
    return None
