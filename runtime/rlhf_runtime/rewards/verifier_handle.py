"""The owner's side of a process that runs a verifier.

The process leads its own process group, so that processes which the verifier starts end with it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import signal
import subprocess
import threading
import time
from collections import deque
from multiprocessing import Pipe
from typing import IO

from rlhf_api.spec.rewards import FunctionReward
from rlhf_runtime.child_python import child_command
from rlhf_runtime.rewards.messages import BatchScores, Load, Ready, Unusable
from rlhf_runtime.rewards.request import SampleBatch
from rlhf_runtime.rewards.sample import Sample

LOGGER = logging.getLogger(__name__)

# Lines of output in an error message about an exited process.
LAST_LINES = 20
# A longer line is logged in pieces.
MAX_LINE_BYTES = 2000
# Limit of the logged lines of a process; an error message has its last lines all the same.
MAX_LINES_PER_MINUTE = 1000
# Maximum wait for the rest of a killed process's output.
DRAIN_SECONDS = 1.0
_PROGRAM = (
    "from rlhf_runtime.rewards.verifier_main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)


class ProcessExited(Exception):
    """The process has exited; the text says how, and what it last printed."""


class VerifierProcess:
    """A process that loads one function and then scores batches.

    connection: readable when the process has sent a message or has exited.
    is_ready: True if the function is loaded.
    batch: the batch that it scores; None while idle.
    deadline: monotonic time by which it must answer; meaningless while it is ready and idle.
    """

    def __init__(
        self,
        name: str,
        function: FunctionReward,
        deadline: float,
        memory_bytes: int | None = None,
    ) -> None:
        """Start the process and send it the function to load; does not wait for it.

        name: the reward's name, for the log.
        memory_bytes: limit of its allocations; files that it maps and does not write do not count.
            None: no limit.
        """
        self.connection, theirs = Pipe(duplex=True)
        self._name = name
        self._last_lines: deque[str] = deque(maxlen=LAST_LINES)
        with theirs:
            # A clean interpreter, not a fork: forking a process with threads (Ray's, torch's) can
            # deadlock.
            self._popen = subprocess.Popen(
                child_command(_PROGRAM, str(theirs.fileno()), str(os.getpid())),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                # Unbuffered, so that the last lines before a crash reach the log.
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        # Set before `Load` is sent: nothing of the user's runs without the limit.
        if memory_bytes is not None:
            _limit_memory(self._popen.pid, memory_bytes)
        assert self._popen.stdout is not None
        self._log_thread = threading.Thread(
            target=self._log_output, args=(self._popen.stdout,), daemon=True
        )
        self._log_thread.start()
        self.is_ready = False
        self.batch: SampleBatch | None = None
        self.deadline = deadline
        # Sent without waiting: all processes of a pool load in parallel.
        self._send(Load(function.entrypoint, function.parameters, function.parts))

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def send_batch(self, batch: SampleBatch, deadline: float) -> None:
        """Send a batch to score.

        Raises:
            ProcessExited: the process died while idle.
        """
        self._send(list(batch.samples))
        self.batch, self.deadline = batch, deadline

    def receive(self) -> Ready | Unusable | BatchScores:
        """Receive a message; call it only when the connection is readable.

        Raises:
            ProcessExited: the process exited instead of answering.
        """
        try:
            message: Ready | Unusable | BatchScores = self.connection.recv()
        except (EOFError, OSError) as error:
            raise ProcessExited(self._exit_message()) from error
        return message

    def kill(self) -> None:
        """Kill its process group and wait for its exit."""
        if self._popen.returncode is not None:
            return  # the kernel may have reused its process id
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self.connection.close()
        # Output that other processes inherited may stay open, so the wait has a limit.
        self._log_thread.join(timeout=DRAIN_SECONDS)

    def _send(self, message: Load | list[Sample]) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise ProcessExited(self._exit_message()) from error

    def _exit_message(self) -> str:
        """Kill what is left of the process, and describe its exit and last output."""
        self.kill()
        # Negative: the number of the signal that killed it.
        code = self._popen.returncode
        how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        lines = "; it last printed:\n" + "\n".join(self._last_lines) if self._last_lines else ""
        return f"the verifier's process ended with {how}{lines}"

    def _log_output(self, stream: IO[bytes]) -> None:
        """Copy its output to the log, line by line, until it closes it."""
        minute_end, num_lines = 0.0, 0
        with stream:
            while line := stream.readline(MAX_LINE_BYTES):
                text = line.decode(errors="replace").rstrip()
                self._last_lines.append(text)
                if time.monotonic() >= minute_end:
                    minute_end, num_lines = time.monotonic() + 60, 0
                num_lines += 1
                if num_lines <= MAX_LINES_PER_MINUTE:
                    LOGGER.info("%s[%d]: %s", self._name, self.pid, text)
                elif num_lines == MAX_LINES_PER_MINUTE + 1:
                    LOGGER.info(
                        "%s[%d] printed %d lines in a minute; its further lines of this minute are "
                        "left out",
                        *(self._name, self.pid, MAX_LINES_PER_MINUTE),
                    )


def _limit_memory(pid: int, num_bytes: int) -> None:
    """Limit the bytes that a process can allocate.

    Source: setrlimit(2), RLIMIT_DATA.
    """
    _, hard = resource.prlimit(pid, resource.RLIMIT_DATA)
    limit = num_bytes if hard == resource.RLIM_INFINITY else min(num_bytes, hard)
    resource.prlimit(pid, resource.RLIMIT_DATA, (limit, hard))
