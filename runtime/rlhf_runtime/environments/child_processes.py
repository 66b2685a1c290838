"""Children of this process, and descriptions of their ends. Linux only; standard library only."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path


def child_processes() -> list[int]:
    """Return the ids of this process's children."""
    children: list[int] = []
    # A child belongs to the thread that has forked it.
    for file in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):
            children += map(int, file.read_text().split())
    return children


def kill_children() -> None:
    """Kill the children of this process and all that they leave to it, and collect them."""
    # Children of ended ones become children of a process that adopts orphans, until there are none.
    with suppress(ChildProcessError):
        while True:
            for child in child_processes():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
            os.waitpid(-1, 0)


def exit_text(code: int) -> str:
    """Describe the exit code of a process; a negative one is the signal that killed it."""
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
