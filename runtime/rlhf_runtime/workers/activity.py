"""Activity of a worker: a thread reports it on request, also while the worker computes or hangs.

The driver asks after a long wait. Nothing is sent unasked.
"""

from __future__ import annotations

import functools
import hmac
import json
import socket
import socketserver
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import Enum, auto
from typing import Concatenate, ParamSpec, TypeVar

import psutil

from rlhf_runtime.serving import serve_in_thread, stop_serving
from rlhf_runtime.telemetry.json_log import STEP

# Time limit of one request and its answer.
ANSWER_SECONDS = 3.0
MAX_KEY_BYTES = 64
# Share of one core; a process below it only keeps itself alive.
CPU_SHARE = 0.05
BYTES_PER_SECOND = 1 << 16
LOOPBACK_INTERFACE = "lo"
# Errors that psutil raises if a process has ended, or the system keeps no count.
UNREADABLE_ERRORS = (psutil.Error, AttributeError, OSError, RuntimeError, ValueError)

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ProgressSignal(Enum):
    """Evidence that a call makes progress."""

    TICKS = auto()
    """The call reports it by `tick`."""
    CPU = auto()
    """The process computes, reads or writes: for work that a library does without ticks."""
    OWN_LIMIT = auto()
    """The call has time limits of its own and is never considered stalled."""


@dataclass(frozen=True)
class WorkerStatus:
    """Activity that a worker reported."""

    call: str
    """The current call; empty between calls."""
    step: int
    seconds: float
    """Time since the last progress (`ProgressSignal`): a call, a micro-batch, a step of
    generation."""
    stacks: Mapping[str, str]
    """Python stack of every thread, by name."""
    thread: str
    """The thread of the current call."""


@dataclass(frozen=True, eq=False)
class _RunningCall:
    """A call, or a part of one."""

    call: str
    step: int
    progress: ProgressSignal
    thread: str


_IDLE = _RunningCall("", 0, ProgressSignal.TICKS, threading.main_thread().name)


@dataclass(frozen=True)
class ProcessActivity:
    """Resources that a process and its descendants have used."""

    cpu_seconds: float
    num_bytes: int
    """Bytes read from storage, written to files, and sent or received by the machine (in a pod: the
    pod)."""

    def has_advanced_since(self, earlier: ProcessActivity, seconds: float) -> bool:
        """True if the process has worked in the seconds since `earlier`."""
        cpu_seconds = self.cpu_seconds - earlier.cpu_seconds
        num_bytes = self.num_bytes - earlier.num_bytes
        return cpu_seconds > CPU_SHARE * seconds or num_bytes > BYTES_PER_SECOND * seconds


def process_activity() -> ProcessActivity:
    """Measure this process and its descendants."""
    this = psutil.Process()
    # The system does not count network traffic by process.
    cpu_seconds, num_bytes = 0.0, _network_bytes()
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
            cpu_seconds += times.user + times.system
            # Children that have ended count, too.
            cpu_seconds += times.children_user + times.children_system
            counters = process.io_counters()
            num_bytes += counters.read_bytes + counters.write_chars
        except UNREADABLE_ERRORS:
            continue
    return ProcessActivity(cpu_seconds, num_bytes)


def _network_bytes() -> int:
    try:
        interfaces = psutil.net_io_counters(pernic=True)
    except UNREADABLE_ERRORS:
        return 0
    return sum(
        counters.bytes_sent + counters.bytes_recv
        for name, counters in interfaces.items()
        if name != LOOPBACK_INTERFACE
    )


class Activity:
    """Activity of this worker. Worker threads update it, the server's thread reads it. With calls
    in several threads it reports the one that began last."""

    def __init__(self) -> None:
        # Calls in progress, in the order in which they began.
        self._running: list[_RunningCall] = []
        self._since = time.monotonic()
        self._effort, self._effort_seen = process_activity(), time.monotonic()
        self._server: socketserver.ThreadingTCPServer | None = None

    @contextmanager
    def during(
        self, call: str, step: int = 0, progress: ProgressSignal = ProgressSignal.TICKS
    ) -> Iterator[None]:
        """Mark a call, or a part of one, as running."""
        doing = _RunningCall(call, step, progress, threading.current_thread().name)
        self._running.append(doing)
        self.tick()
        token = STEP.set(step)
        try:
            yield
        finally:
            STEP.reset(token)
            self._running.remove(doing)
            self.tick()

    def tick(self) -> None:
        """Record progress."""
        self._since = time.monotonic()

    def status(self) -> WorkerStatus:
        """Return the current activity."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {
            names.get(number, str(number)): "".join(traceback.format_stack(frame))
            # The only way to see the stack of another thread, a hanging one included.
            for number, frame in sys._current_frames().items()
        }
        now = next(iter(self._running[-1:]), _IDLE)
        # Calls with limits of their own, and processes that work, are not stalled.
        if now.progress is ProgressSignal.OWN_LIMIT or (
            now.progress is ProgressSignal.CPU and self._has_worked()
        ):
            self.tick()
        seconds = time.monotonic() - self._since
        return WorkerStatus(now.call, now.step, seconds, stacks, now.thread)

    def _has_worked(self) -> bool:
        """True if the process has worked since the previous status."""
        now, effort = time.monotonic(), process_activity()
        worked = effort.has_advanced_since(self._effort, now - self._effort_seen)
        self._effort, self._effort_seen = effort, now
        return worked

    def serve(self, host: str, key: str) -> tuple[str, int]:
        """Start to answer requests with the right key, in a thread.

        Returns:
            Host and port.
        """
        activity = self

        class Answer(socketserver.StreamRequestHandler):
            timeout = ANSWER_SECONDS

            def handle(self) -> None:
                received = self.rfile.readline(MAX_KEY_BYTES + 1).strip()
                # Stacks tell about user code: only the driver may read them.
                if hmac.compare_digest(received, key.encode()):
                    self.wfile.write(json.dumps(asdict(activity.status())).encode())

        server = socketserver.ThreadingTCPServer((host, 0), Answer)
        server.daemon_threads = True
        serve_in_thread(server, "activity")
        self._server = server
        return host, server.server_address[1]

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            stop_serving(self._server)
            self._server = None


class ActivityServer:
    """Base of every actor of a job: a worker that reports its activity."""

    def __init__(self) -> None:
        self.activity = Activity()

    def serve_activity(self, one_machine: bool, key: str) -> tuple[str, int]:
        """Start to report this worker's activity to callers with the key.

        Args:
            one_machine: only processes of this machine can connect.
            key: the shared secret.

        Returns:
            Host and port.
        """
        from rlhf_runtime.workers.addresses import own_address

        return self.activity.serve(own_address(one_machine), key)


Worker = TypeVar("Worker", bound=ActivityServer)


def heartbeat_by_cpu(
    method: Callable[Concatenate[Worker, Parameters], Result],
) -> Callable[Concatenate[Worker, Parameters], Result]:
    """Let CPU and I/O of the process count as progress of a worker's method."""

    @functools.wraps(method)
    def wrapper(worker: Worker, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with worker.activity.during(method.__name__, progress=ProgressSignal.CPU):
            return method(worker, *args, **kwargs)

    return wrapper


def request_status(address: tuple[str, int], key: str) -> WorkerStatus | None:
    """Return the activity of the worker at an address; None if it does not answer."""
    try:
        with socket.create_connection(address, timeout=ANSWER_SECONDS) as connection:
            connection.sendall(f"{key}\n".encode())
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        return WorkerStatus(**json.loads(text))
    except (OSError, ValueError, TypeError):
        return None
