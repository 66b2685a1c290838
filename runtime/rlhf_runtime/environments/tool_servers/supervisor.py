"""The process above a server's program: it ends the program with all that this has started.

The kernel ends a process with its parent, but not the processes below it, and commands such as
`npx` and `uvx` start the server as one of these. Linux only; standard library only.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from types import FrameType

from rlhf_runtime.end_with_parent import end_with
from rlhf_runtime.environments.child_processes import exit_text, kill_children
from rlhf_runtime.environments.isolation import adopt_orphans, forbid_new_rights, leave_network

# As shells have it.
CANNOT_START = 127


class _Ended(BaseException):
    """This process is to end."""


def main(
    owner_pid: int, allow_network: bool, command: Sequence[str], python_path: Sequence[str]
) -> None:
    """Run a program until it ends, or the owner does; ends the process.

    Args:
        owner_pid: the process that started this one; this process ends with it.
        allow_network: True if the program may reach the network.
        command: program and arguments; they get this process's streams.
        python_path: folders that the program, if it is Python, can import modules from.
    """
    end_with(owner_pid)
    code = CANNOT_START
    try:
        if not allow_network and (problem := leave_network()):
            _say(f"it may reach the network: this node lets no process leave it ({problem})")
        forbid_new_rights()
        adopt_orphans()
        signal.signal(signal.SIGTERM, _raise_ended)
        # The kernel forgets the owner when rights change.
        end_with(owner_pid, signal.SIGTERM)
        # Not before: modules of these folders must not take the place of those of this process.
        folders = [*python_path, *filter(None, [os.environ.get("PYTHONPATH")])]
        if folders:
            os.environ["PYTHONPATH"] = os.pathsep.join(folders)
        code = _run(command)
        _say(f"the server's program ended with {exit_text(code)}")
    except _Ended:
        code = 0
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_children()
        os._exit(code if code >= 0 else 128 - code)


def _raise_ended(number: int, frame: FrameType | None) -> None:
    raise _Ended


def _run(command: Sequence[str]) -> int:
    """Start the program and wait for its end; returns its exit code."""
    own = os.getpid()
    program = os.fork()
    if program == 0:
        try:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            end_with(own)
            os.execvp(command[0], list(command))
        except BaseException as error:
            _say(f"{command[0]} cannot be started: {error}")
        finally:
            os._exit(CANNOT_START)
    # Only the program holds the streams of the protocol, so that their ends are noticed.
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)
    while True:
        # Orphans of the program are children of this process.
        ended, status = os.waitpid(-1, 0)
        if ended == program:
            return os.waitstatus_to_exitcode(status)


def _say(text: str) -> None:
    os.write(2, f"{text}\n".encode())
