"""The owner's side of the conversations' fork server. One event loop serves everything."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_runtime.child_python import child_command
from rlhf_runtime.environments import frames
from rlhf_runtime.environments.child_processes import exit_text
from rlhf_runtime.environments.errors import (
    EnvironmentsLost,
    ImportFailed,
    ImportTimedOut,
    InvalidEnvironment,
)
from rlhf_runtime.environments.isolation import kill_group, tool_variables
from rlhf_runtime.environments.message_reader import MessageReader, wait_until_ready
from rlhf_runtime.environments.output_log import LineLimit, Output
from rlhf_runtime.environments.settings import EnvironmentDescription, EnvironmentSettings

LOGGER = logging.getLogger(__name__)

# Time limit for importing the user's modules.
START_SECONDS = 120.0
# Time limit for a fork; it takes milliseconds.
FORK_SECONDS = 30.0
# Time limit for a killed process to end.
END_SECONDS = 10.0
_PROGRAM = (
    "sys.path[:0] = json.loads(sys.argv[4]); "
    "from rlhf_runtime.environments.episode_server import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)

FOLDER_PREFIX = "rlhf-conversations-"
"""Begin of the name of a server's folder; the process id of its owner follows."""


@dataclass
class Forked:
    """A conversation's process, as the server reports it.

    number: of the conversation.
    connection: to the process.
    output: what it prints.
    process: its id, once it is forked.
    ended: description of its exit, once it has ended.
    is_in_use: true while a request waits for the process.
    """

    number: int
    connection: socket.socket
    output: Output
    process: asyncio.Future[int] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    ended: asyncio.Future[str] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    is_in_use: bool = False


def remove_stale_folders(parent: Path) -> None:
    """Remove folders of servers that were killed together with their owners.

    Args:
        parent: of the folders.
    """
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            shutil.rmtree(folder, ignore_errors=True)


class ServerHandle:
    """A running fork server. Every method belongs to the event loop that has started it."""

    def __init__(self, settings: EnvironmentSettings, python_path: Sequence[str] = ()) -> None:
        """Start the process; does not wait for it.

        Args:
            settings: of the environments.
            python_path: further folders of the user's code.
        """
        self._settings = settings
        remove_stale_folders(Path(tempfile.gettempdir()))
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        self._control, theirs = socket.socketpair()
        self._control.setblocking(False)
        self._reports = MessageReader(self._control)
        variables = tool_variables(os.environ, settings.variables, settings.allow_network)
        folders = json.dumps([str(Path(folder).absolute()) for folder in python_path])
        with theirs:
            # A clean interpreter, not a fork: forking a process with threads can deadlock.
            self._popen = subprocess.Popen(
                child_command(_PROGRAM, str(theirs.fileno()), str(os.getpid()), folders),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={"HOME": str(self._folder), "TMPDIR": str(self._folder), **variables},
            )
        assert self._popen.stdout is not None
        self._lines = LineLimit(LOGGER, "environments")
        self._output = Output(os.dup(self._popen.stdout.fileno()), self._popen.pid, self._lines)
        self._popen.stdout.close()
        self._forked: dict[int, Forked] = {}
        self._num_forks = 0
        # One message at a time.
        self._sending = asyncio.Lock()
        self._reader: asyncio.Task[None] | None = None
        self.is_alive = True

    async def load(self, seconds: float = START_SECONDS) -> EnvironmentDescription:
        """Import the user's modules, and return the description of what is there.

        Args:
            seconds: limit of the import.

        Raises:
            InvalidEnvironment: they cannot be used.
        """
        request = {"settings": self._settings.to_json(), "folder": str(self._folder)}
        try:
            async with asyncio.timeout(seconds):
                await self._send(request)
                reply = await self._reports.receive()
        except TimeoutError:
            raise ImportTimedOut(
                "the environment cannot be used: importing it took longer than "
                f"{seconds:g} s; do less during its import{self._output.last_lines()}"
            ) from None
        except (EOFError, OSError, frames.BadFrame):
            code = await self._exit_code()
            raise ImportFailed(
                f"the environment cannot be used: its process ended with {code} while it imported "
                f"the module{self._output.last_lines()}"
            ) from None
        if "unusable" in reply:
            kind = ImportFailed if reply["is_import"] else InvalidEnvironment
            text = f"the environment cannot be used: {reply['unusable']}"
            raise kind(text, reply["entrypoint"])
        self._reader = asyncio.create_task(self._read_reports())
        return EnvironmentDescription.from_json(reply["ready"])

    async def fork(self) -> Forked:
        """Fork a process for a conversation.

        Raises:
            EnvironmentsLost: the server has ended, or too many files are open.
        """
        self._num_forks += 1
        forked, theirs, writable = self._open(self._num_forks)
        try:
            with theirs:
                await self._send({"fork": forked.number}, [theirs.fileno(), writable])
            await self._wait_for_fork(forked)
        except OSError as error:
            self._lose()
            await self.end(forked)
            raise _cannot_fork("a server of all conversations that has ended") from error
        except BaseException:  # a caller that gives up must not leave a process behind
            await self.end(forked)
            raise
        finally:
            os.close(writable)
        forked.output.pid = forked.process.result()
        return forked

    def _open(self, number: int) -> tuple[Forked, socket.socket, int]:
        """Open the connection and the output of a process; also return the ends that it gets."""
        with contextlib.ExitStack() as undo:
            try:
                ours, theirs = map(undo.enter_context, socket.socketpair())
                readable, writable = os.pipe()
            except OSError as error:
                raise _cannot_fork(str(error)) from error
            undo.pop_all()
        ours.setblocking(False)
        output = Output(readable, number, self._lines)
        forked = self._forked[number] = Forked(number, ours, output)
        return forked, theirs, writable

    async def _wait_for_fork(self, forked: Forked) -> None:
        waiting: list[asyncio.Future[Any]] = [forked.process, forked.ended]
        await asyncio.wait(waiting, timeout=FORK_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if forked.process.done():
            return
        why = f"no fork within {FORK_SECONDS:g} s"
        if forked.ended.done():
            why = forked.ended.result()
        else:
            self._lose()
        raise _cannot_fork(why)

    async def end(self, forked: Forked, grace_seconds: float = 0.0) -> str:
        """Kill a conversation's process and all that it has started, and remove its folder.

        Args:
            forked: the process.
            grace_seconds: wait that long for its own end before.

        Returns:
            Description of its exit, and its last output.
        """
        if grace_seconds:
            await asyncio.wait([forked.ended], timeout=grace_seconds)
        if not forked.ended.done():
            with contextlib.suppress(OSError):
                await self._send({"kill": forked.number})
            await asyncio.wait([forked.ended], timeout=END_SECONDS)
        why = forked.ended.result() if forked.ended.done() else "no end after a kill"
        why += forked.output.last_lines()
        self._close_ends(forked)
        folder = self._folder / str(forked.number)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        return why

    async def close(self) -> None:
        """End the server and all conversations' processes."""
        self.is_alive = False
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.wait([self._reader])
        # It ends everything when the connection closes.
        self._control.close()
        await self._exit_code()
        self._lose()
        for forked in list(self._forked.values()):
            if forked.is_in_use:
                # The event loop never wakes a reader whose file was closed. This one closes it.
                with contextlib.suppress(OSError):
                    forked.connection.shutdown(socket.SHUT_RDWR)
            else:
                self._close_ends(forked)
        self._output.close()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    async def _exit_code(self) -> str:
        """Wait until the server has ended."""
        try:
            code = await asyncio.to_thread(self._popen.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            code = await asyncio.to_thread(self._popen.wait)
        return exit_text(code)

    async def _read_reports(self) -> None:
        """Receive reports until the server ends."""
        try:
            while True:
                report = await self._reports.receive()
                # A caller that gave up has removed it.
                forked = self._forked.get(report["number"])
                if forked is not None and "process" in report:
                    forked.process.set_result(report["process"])
                elif forked is not None and not forked.ended.done():
                    forked.ended.set_result(report["why"])
        except (EOFError, OSError, frames.BadFrame):
            self._lose()

    def _lose(self) -> None:
        """Kill a server that does not work, and what it has forked."""
        self.is_alive = False
        if self._popen.poll() is None:
            self._popen.kill()
        for forked in self._forked.values():
            if forked.ended.done():
                continue
            if forked.process.done():
                # The kernel kills the process with its server, but not what it has started.
                kill_group(forked.process.result())
            forked.ended.set_result("the end of the server of all conversations")

    def _close_ends(self, forked: Forked) -> None:
        self._forked.pop(forked.number, None)
        forked.connection.close()
        forked.output.close()

    async def _send(self, message: frames.Message, descriptors: Sequence[int] = ()) -> None:
        loop, content = asyncio.get_running_loop(), frames.encode(message)
        async with self._sending:
            while descriptors:
                try:
                    sent = socket.send_fds(self._control, [content], list(descriptors))
                except BlockingIOError:
                    await wait_until_ready(self._control, to_write=True)
                else:
                    content, descriptors = content[sent:], ()
            await loop.sock_sendall(self._control, content)


def _cannot_fork(got: str) -> EnvironmentsLost:
    return EnvironmentsLost(
        f"no process can be started for a conversation: got {got}, allowed a new process; free "
        "memory on the node, or lower rollout.environment.concurrency"
    )
