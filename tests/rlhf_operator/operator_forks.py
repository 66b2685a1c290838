"""Operators as copies of one process that has imported what they need.

An import takes seconds, and these tests start dozens of operators. Copies run the same `main` with
the same words. `python -m rlhf_operator` itself is started by test_process_on_an_api_server.py and
by the benchmark of many jobs.

As a program this file is that process. It reads a request per line, and writes the copy's pid; the
copy's exit code becomes a file. Its input ends with its owner; no copy survives that.
"""

from __future__ import annotations

import atexit
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from types import FrameType

from ..waiting import wait_until

PREFORKED = "rlhf_operator.__main__"
"""Imported before any copy."""
STARTED_SECONDS = 60.0


@dataclass(frozen=True)
class Request:
    """A copy that is asked for."""

    words: list[str]
    """Arguments of the operator."""
    folder: str
    """Working directory."""
    log: str
    """File to which the output is appended."""
    exit_file: str
    environment: dict[str, str]
    constants: dict[str, float]
    """Values to set in modules of the operator, by `module:NAME`."""


@dataclass
class ForkedProcess:
    """A copy, with what its users need of `subprocess.Popen`."""

    pid: int
    exit_file: Path

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        return int(self.exit_file.read_text()) if self.exit_file.exists() else None

    def wait(self, seconds: float) -> int:
        """Wait for the end; returns the exit code.

        Raises:
            TimeoutExpired: it still runs.
        """
        try:
            wait_until(self.exit_file.exists, seconds, "an end")
        except AssertionError:
            raise subprocess.TimeoutExpired("operator", seconds) from None
        return int(self.exit_file.read_text())

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that has not ended."""
        if self.poll() is None:
            os.kill(self.pid, number)


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process to copy, once in a session."""
    server = subprocess.Popen(
        [sys.executable, "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    assert server.stdin is not None
    server.stdin.close()
    server.wait(STARTED_SECONDS)


def fork_operator(
    words: Sequence[str], folder: Path, log: Path, constants: Mapping[str, float]
) -> ForkedProcess:
    """Start an operator.

    Args:
        words: its arguments.
        folder: its working directory.
        log: file to which its output is appended.
        constants: values to set in its modules before, by `module:NAME`.
    """
    exit_file = Path(tempfile.gettempdir(), f"operator-{uuid.uuid4().hex}.exit")
    atexit.register(exit_file.unlink, missing_ok=True)
    request = Request(
        list(words), str(folder), str(log), str(exit_file), dict(os.environ), dict(constants)
    )
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps(asdict(request)) + "\n")
    server.stdin.flush()
    return ForkedProcess(int(server.stdout.readline()), exit_file)


def serve() -> None:
    """Start a copy per line of the input, and write their exit codes, until the input ends."""
    importlib.import_module(PREFORKED)
    exit_files: dict[int, Path] = {}

    def reap(number: int, frame: FrameType | None) -> None:
        for pid in [*exit_files]:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                _write(exit_files.pop(pid), str(os.waitstatus_to_exitcode(status)))

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        request = Request(**json.loads(line))
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
            os._exit(_live(request))
        exit_files[pid] = Path(request.exit_file)
        print(pid, flush=True)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    for pid in [*exit_files]:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _live(request: Request) -> int:
    """Be an operator; returns the exit code."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(request.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(descriptor, number)
    os.chdir(request.folder)
    os.environ.clear()
    os.environ.update(request.environment)
    for name, value in request.constants.items():
        module, _, constant = name.partition(":")
        loaded = importlib.import_module(module)
        assert hasattr(loaded, constant), name
        setattr(loaded, constant, value)
    try:
        code: int = importlib.import_module(PREFORKED).main(request.words)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _write(file: Path, text: str) -> None:
    """Write a file at once: no reader sees a part of it."""
    part = file.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.rename(file)


if __name__ == "__main__":
    serve()
