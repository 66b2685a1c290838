"""Ends a process with its parent, by the kernel: even if it hangs or is frozen.

As a program it idles until its raylet ends.
"""

# Standard library only: a start of Ray waits for the program.

from __future__ import annotations

import ctypes
import os
import signal
import sys

# Environment variable with the raylet's process number, which Ray sets.
RAYLET = "RAY_RAYLET_PID"

_PR_SET_PDEATHSIG = 1


def end_with(owner_pid: int, by: signal.Signals = signal.SIGKILL) -> None:
    """End this process when the thread that started it ends, or at once if it has ended.

    Args:
        owner_pid: the process that started this one.
        by: signal that the kernel sends.
    """
    # Only Linux supports this; elsewhere only an owner that has already ended is noticed.
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    # The owner may have ended before the kernel knew of the request.
    if os.getppid() != owner_pid:
        os._exit(0)


def end_with_raylet() -> None:
    """End this process, which Ray has started, with the raylet of its node."""
    # A process that another program has started for the raylet is left to Ray, whose check needs a
    # running thread.
    raylet = int(os.environ[RAYLET])
    if os.getppid() == raylet or not _lives(raylet):
        end_with(raylet)


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it lives and belongs to another user
    return True


def idle_command() -> list[str]:
    """The command line of a process that idles until its raylet ends."""
    # Without site packages Python starts faster.
    return [sys.executable, "-I", "-S", __file__]


if __name__ == "__main__":
    end_with(int(os.environ[RAYLET]))
    while True:
        signal.pause()
