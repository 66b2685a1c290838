"""Processes that the kernel ends with the one that started them, even by SIGKILL, even while they
hang or are frozen.

As a program it does nothing until its raylet ends. Standard library only, and started without site
packages: a start of Ray waits for it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

RAYLET = "RAY_RAYLET_PID"
"""Where Ray tells everything that a raylet starts who that is."""
_PR_SET_PDEATHSIG = 1


def end_with(owner_pid: int) -> None:
    """End this process when the thread that started it ends; at once if that has happened.

    Only Linux offers it; elsewhere only an owner that is gone already is noticed.

    owner_pid: the process that started this one.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != owner_pid:
        os._exit(0)


def end_with_raylet() -> None:
    """End this process, which Ray has started, with the raylet of its node.

    One that another program has started for the raylet is left to Ray's own way, which takes a
    thread that runs.
    """
    raylet = int(os.environ[RAYLET])
    if os.getppid() == raylet or not _lives(raylet):
        end_with(raylet)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def idle_command() -> list[str]:
    """Words of a command that a raylet starts, and that does nothing until the raylet ends."""
    return [sys.executable, "-I", "-S", __file__]


if __name__ == "__main__":
    end_with(int(os.environ[RAYLET]))
    while True:
        signal.pause()
