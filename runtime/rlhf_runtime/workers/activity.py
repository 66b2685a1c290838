"""What a worker is doing, for whoever asks: a thread answers while the worker computes or hangs.

The driver asks when it has waited for long. Nothing is sent as long as nobody asks.
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

ANSWER_SECONDS = 3.0
"""How long a worker may take to answer."""
MAX_KEY_BYTES = 64
CPU_SHARE = 0.05
"""Of one core: below it a process only keeps itself alive."""
BYTES_PER_SECOND = 1 << 16
LOOPBACK_INTERFACE = "lo"
UNREADABLE_ERRORS = (psutil.Error, AttributeError, OSError, RuntimeError, ValueError)
"""What psutil raises where a process has ended, or the system does not count."""

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class ProgressSignal(Enum):
    """How it shows that a call gets on."""

    TICKS = auto()
    """It says so."""
    CPU = auto()
    """The process computes, reads or writes; as good as it gets where a library does the work."""
    OWN_LIMIT = auto()
    """It has time limits of its own, and needs no other."""


@dataclass(frozen=True)
class WorkerStatus:
    """What a worker said."""

    call: str
    """The call it is in; empty while it waits for one."""
    step: int
    seconds: float
    """Since something was done (`Progress`): a call, a micro-batch, a step of generation."""
    stacks: Mapping[str, str]
    """Python stack of every thread, by name."""
    thread: str
    """The one that the call is in."""


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
    """Of a process and of those that it has started."""

    cpu_seconds: float
    num_bytes: int
    """Read from storage, written to files, and what the machine (in a pod: the pod) has sent and
    received: the system does not count it by process."""

    def has_advanced_since(self, earlier: ProcessActivity, seconds: float) -> bool:
        """Whether it has worked in the seconds since."""
        cpu_seconds = self.cpu_seconds - earlier.cpu_seconds
        num_bytes = self.num_bytes - earlier.num_bytes
        return cpu_seconds > CPU_SHARE * seconds or num_bytes > BYTES_PER_SECOND * seconds


def process_activity() -> ProcessActivity:
    """This process's, with its descendants'."""
    this = psutil.Process()
    cpu_seconds, num_bytes = 0.0, _network_bytes()
    for process in [this, *this.children(recursive=True)]:
        try:
            times = process.cpu_times()
            cpu_seconds += times.user + times.system
            cpu_seconds += times.children_user + times.children_system  # of those that have ended
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
    """Kept up to date by the worker's threads, read by the one that answers. Of calls in several
    threads it tells the one that began last."""

    def __init__(self) -> None:
        self._running: list[_RunningCall] = []
        """What has begun and not ended, in the order in which it began."""
        self._since = time.monotonic()
        self._effort, self._effort_seen = process_activity(), time.monotonic()
        self._server: socketserver.ThreadingTCPServer | None = None

    @contextmanager
    def during(
        self, call: str, step: int = 0, progress: ProgressSignal = ProgressSignal.TICKS
    ) -> Iterator[None]:
        """A call, or a part of one, from its beginning to its end."""
        doing = _RunningCall(call, step, progress, threading.current_thread().name)
        self._running.append(doing)
        self.tick()
        try:
            yield
        finally:
            self._running.remove(doing)
            self.tick()

    def tick(self) -> None:
        """Something was done."""
        self._since = time.monotonic()

    def status(self) -> WorkerStatus:
        """As it is now."""
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        stacks = {
            names.get(number, str(number)): "".join(traceback.format_stack(frame))
            for number, frame in sys._current_frames().items()
        }
        now = next(iter(self._running[-1:]), _IDLE)
        if now.progress is ProgressSignal.OWN_LIMIT or (
            now.progress is ProgressSignal.CPU and self._has_worked()
        ):
            self.tick()
        seconds = time.monotonic() - self._since
        return WorkerStatus(now.call, now.step, seconds, stacks, now.thread)

    def _has_worked(self) -> bool:
        """Whether the process has done anything since it was asked before."""
        now, effort = time.monotonic(), process_activity()
        worked = effort.has_advanced_since(self._effort, now - self._effort_seen)
        self._effort, self._effort_seen = effort, now
        return worked

    def serve(self, host: str, key: str) -> tuple[str, int]:
        """Answer from now on, in a thread, whoever knows the key; returns where."""
        activity = self

        class Answer(socketserver.StreamRequestHandler):
            timeout = ANSWER_SECONDS

            def handle(self) -> None:
                received = self.rfile.readline(MAX_KEY_BYTES + 1).strip()
                if hmac.compare_digest(received, key.encode()):
                    self.wfile.write(json.dumps(asdict(activity.status())).encode())

        server = socketserver.ThreadingTCPServer((host, 0), Answer)
        server.daemon_threads = True
        serve_in_thread(server, "activity")
        self._server = server
        return host, server.server_address[1]

    def close(self) -> None:
        """Answer no more."""
        if self._server is not None:
            stop_serving(self._server)
            self._server = None


class ActivityServer:
    """A worker that says what it is doing; what every actor of a job derives from."""

    def __init__(self) -> None:
        self.activity = Activity()

    def serve_activity(self, one_machine: bool, key: str) -> tuple[str, int]:
        """Where this worker answers what it is doing, from now on; only to who knows the key.

        With `one_machine` only processes of this machine can ask.
        """
        from rlhf_runtime.workers.addresses import own_address

        return self.activity.serve(own_address(one_machine), key)


Worker = TypeVar("Worker", bound=ActivityServer)


def heartbeat_by_cpu(
    method: Callable[Concatenate[Worker, Parameters], Result],
) -> Callable[Concatenate[Worker, Parameters], Result]:
    """A worker's method in which nobody ticks: the process's effort is its progress."""

    @functools.wraps(method)
    def wrapper(worker: Worker, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with worker.activity.during(method.__name__, progress=ProgressSignal.CPU):
            return method(worker, *args, **kwargs)

    return wrapper


def request_status(address: tuple[str, int], key: str) -> WorkerStatus | None:
    """What the worker at an address is doing; None if it does not answer."""
    try:
        with socket.create_connection(address, timeout=ANSWER_SECONDS) as connection:
            connection.sendall(f"{key}\n".encode())
            text = b"".join(iter(lambda: connection.recv(1 << 16), b""))
        return WorkerStatus(**json.loads(text))
    except (OSError, ValueError, TypeError):
        return None
