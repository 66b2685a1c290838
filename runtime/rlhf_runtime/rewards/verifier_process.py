"""One process that runs a verifier, seen from its owner.

A clean interpreter, not a fork of this process: forking a process with threads (Ray's, torch's) can
deadlock. It leads a process group of its own, so that what the verifier starts ends with it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections import deque
from multiprocessing import Pipe
from typing import IO

from rlhf_api.spec.rewards import FunctionReward
from rlhf_runtime.rewards.messages import BatchScores, Load, Ready, Unusable
from rlhf_runtime.rewards.request import Batch
from rlhf_runtime.rewards.sample import Sample

LOGGER = logging.getLogger(__name__)

LAST_LINES = 20
"""Lines of output that an error message about a dead process shows."""
LONGEST_LINE = 2000
"""Bytes; a longer line is logged in pieces."""
LAST_WORDS_SECONDS = 1.0
"""Longest wait for the rest of a killed process's output."""
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from rlhf_runtime.rewards.verifier_main import main; "
    "main(int(sys.argv[2]), int(sys.argv[3]))"
)


class ProcessEnded(Exception):
    """The process is gone; the text says how it ended and what it last printed."""


class VerifierProcess:
    """A process that loads one function and then scores batches.

    connection: readable when the process has said something or has ended.
    is_ready: whether the function is loaded.
    batch: what it is scoring; None when it is idle.
    deadline: clock time by which it must have answered; meaningless when it is ready and idle.
    """

    def __init__(
        self,
        name: str,
        function: FunctionReward,
        deadline: float,
        memory_bytes: int | None = None,
    ) -> None:
        """Start the process and tell it what to load; does not wait for it.

        name: the reward's name, for the log.
        memory_bytes: that it may allocate; files that it maps and does not write do not count.
            None: without a limit of its own.
        """
        self.connection, theirs = Pipe(duplex=True)
        self._name = name
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        with theirs:
            self._popen = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-c", _PROGRAM),
                    *(json.dumps(sys.path), str(theirs.fileno()), str(os.getpid())),
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        if memory_bytes is not None:  # it waits for what to load
            _limit_memory(self._popen.pid, memory_bytes)
        assert self._popen.stdout is not None
        self._log_thread = threading.Thread(
            target=self._log_output, args=(self._popen.stdout,), daemon=True
        )
        self._log_thread.start()
        self.is_ready = False
        self.batch: Batch | None = None
        self.deadline = deadline
        self._send(Load(function.entrypoint, function.parameters))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def hand_over(self, batch: Batch, deadline: float) -> None:
        """Give it a batch to score.

        Raises:
            ProcessEnded: it died while it was idle.
        """
        self._send(list(batch.samples))
        self.batch, self.deadline = batch, deadline

    def receive(self) -> Ready | Unusable | BatchScores:
        """What it says; call only when the connection is readable.

        Raises:
            ProcessEnded: it ended instead of answering.
        """
        try:
            message: Ready | Unusable | BatchScores = self.connection.recv()
        except (EOFError, OSError) as error:
            raise ProcessEnded(self._ending()) from error
        return message

    def kill(self) -> None:
        """End it and everything that it has started; returns when it is gone."""
        if self._popen.returncode is not None:
            return  # its process id may already be somebody else's
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self.connection.close()
        self._log_thread.join(timeout=LAST_WORDS_SECONDS)

    def _send(self, message: Load | list[Sample]) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise ProcessEnded(self._ending()) from error

    def _ending(self) -> str:
        """How it ended, with its last words."""
        self.kill()
        code = self._popen.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        said = "; it last printed:\n" + "\n".join(self._last_lines) if self._last_lines else ""
        return f"the verifier's process ended with {how}{said}"

    def _log_output(self, stream: IO[bytes]) -> None:
        """Pass what it prints to the log, line by line, until it closes its output."""
        with stream:
            while line := stream.readline(LONGEST_LINE):
                text = line.decode(errors="replace").rstrip()
                self._last_lines.append(text)
                LOGGER.info("%s[%d]: %s", self._name, self.pid, text)


def _limit_memory(pid: int, num_bytes: int) -> None:
    """Let allocations of a process fail beyond a number of bytes.

    Source: setrlimit(2), RLIMIT_DATA.
    """
    _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
    limit = num_bytes if most == resource.RLIM_INFINITY else min(num_bytes, most)
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, most))
