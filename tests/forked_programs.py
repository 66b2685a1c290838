"""Programs as copies of a process that has imported what they need.

An import takes seconds, and tests start these programs dozens of times. A copy runs the same
function with the same arguments, working directory and environment as a process of its own would.

As a program this file is the process to copy. It reads a request per line, and writes the copy's
pid; the copy's exit code becomes a file. Its input ends with its owner; no copy survives that.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NoReturn

from .waiting import wait_until

END_SECONDS = 60.0


@dataclass(frozen=True)
class Program:
    """A program to run as a copy."""

    function: str
    """`module:function`, which returns the exit code."""
    arguments: list[str]
    """As in `sys.argv`."""
    folder: str
    """Working directory."""
    log: str
    """File to which the output is appended."""
    environment: dict[str, str]
    constants: dict[str, float] = field(default_factory=dict)
    """Values to set in modules before, by `module:NAME`."""
    has_own_session: bool = False


@dataclass
class ForkedProcess:
    """A copy, with what its users need of `subprocess.Popen`."""

    pid: int
    exit_file: Path

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return int(self.exit_file.read_text()) if self.exit_file.exists() else None

    def wait(self, seconds: float = END_SECONDS) -> int:
        """Wait for the end; returns the exit code.

        Raises:
            TimeoutExpired: it still runs.
        """
        try:
            wait_until(self.exit_file.exists, seconds, "an end")
        except AssertionError:
            raise subprocess.TimeoutExpired(f"process {self.pid}", seconds) from None
        return int(self.exit_file.read_text())

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


def start_copy(
    program: Program, imported: Sequence[str], python: str = sys.executable
) -> ForkedProcess:
    """Start a program as a copy of a process of `python` that has imported modules."""
    server = _server(tuple(imported), python)
    assert server.stdin is not None and server.stdout is not None
    exit_file = Path(tempfile.gettempdir(), f"copy-{uuid.uuid4().hex}.exit")
    atexit.register(exit_file.unlink, missing_ok=True)
    server.stdin.write(json.dumps([str(exit_file), asdict(program)]) + "\n")
    server.stdin.flush()
    return ForkedProcess(int(server.stdout.readline()), exit_file)


@cache
def _server(imported: tuple[str, ...], python: str) -> subprocess.Popen[str]:
    """Start the process to copy, once in a process of tests."""
    server = subprocess.Popen(
        [python, "-m", __name__, *imported],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(END_SECONDS)


def serve(imported: Sequence[str]) -> None:
    """Start a copy per line of the input, and write their exit codes, until the input ends."""
    for module in imported:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # the collector's marks would copy the pages that copies share
    exit_files: dict[int, Path] = {}

    def reap(number: int, frame: FrameType | None) -> None:
        for pid in [*exit_files]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _write(exit_files.pop(pid), str(os.waitstatus_to_exitcode(status)))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        exit_file, settings = json.loads(line)
        # A copy that ends at once is reaped after it is known.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            _run(Program(**settings))
        exit_files[pid] = Path(exit_file)
        print(pid, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in [*exit_files]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _run(program: Program) -> NoReturn:
    """Be the program."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    if program.has_own_session:
        os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(program.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.closerange(3, max(nothing, log) + 1)
    os.environ.clear()
    os.environ.update(program.environment)
    sys.argv = program.arguments
    sys.path[sys.path.index(os.getcwd())] = str(Path(program.arguments[0]).parent)
    os.chdir(program.folder)
    for name, value in program.constants.items():
        module, _, constant = name.partition(":")
        loaded = importlib.import_module(module)
        assert hasattr(loaded, constant), name
        setattr(loaded, constant, value)
    module, _, function = program.function.partition(":")
    # `multiprocessing` imports the main module by its name in the processes that a program starts.
    sys.modules["__main__"].__spec__ = importlib.util.find_spec(module)
    sys.exit(getattr(importlib.import_module(module), function)())


def _write(file: Path, text: str) -> None:
    """Write a file at once: no reader sees a part of it."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(file)


if __name__ == "__main__":
    serve(sys.argv[1:])
