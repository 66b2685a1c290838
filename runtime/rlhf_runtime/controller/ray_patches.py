"""Patches of how Ray starts the processes of a node."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from ray._private import services

POLL_SECONDS = 0.05
"""Interval of checks during the start."""


@contextmanager
def patched(owner: Any, name: str, value: object) -> Iterator[None]:
    """Replace an attribute for the duration of a block."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


def patched_node_wait(
    started: Sequence[subprocess.Popen[bytes]], seconds: float
) -> AbstractContextManager[None]:
    """Patch Ray's wait for its raylet: Ray itself gives up after 30 seconds.

    The wait also ends if a process dies.

    Args:
        started: Ray's processes; more may be added.
        seconds: time limit.
    """
    get_node = services.get_node

    def wait(*arguments: Any) -> Any:
        deadline = time.monotonic() + seconds
        while True:
            try:
                return get_node(*arguments)
            except RuntimeError:  # it has not registered yet
                if time.monotonic() > deadline:
                    raise
            for process in started:
                if process.poll() is not None:
                    words = " ".join(map(str, process.args))  # type: ignore[arg-type]
                    raise ChildProcessError(f"{words[:80]} ended with {process.returncode}")
            time.sleep(POLL_SECONDS)

    return patched(services, "get_node", wait)
