"""The fork server: imports the workers' libraries, then forks one worker per request.

It has one thread and never touches a device, so its forks are as good as new processes. It ends the
workers of a raylet that has ended. It ends with its owner or with the one raylet that it was
started for, and the kernel ends its workers with it.

    python -P -m rlhf_runtime.forkserver.server --listener DESCRIPTOR --device CPU
        [--owner PID | --raylet PID] [--lazy] [--forked RAYLET,DESCRIPTORS ...]
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import runpy
import select
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rlhf_api.spec.resources import Device
from rlhf_runtime.end_with_parent import RAYLET, end_with
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.workers.libraries import import_libraries

# Time limit for a request to arrive.
REQUEST_SECONDS = 10.0
# Requests that may wait while libraries are imported.
MAX_WAITING_REQUESTS = 128


@dataclass(frozen=True)
class Worker:
    """Script, environment and folder of a forked process."""

    argv: list[str]
    """The script and its arguments."""
    environment: Mapping[str, str]
    folder: str

    def run(self, imported: Mapping[str, str]) -> None:
        """Run the script in this process; returns or raises as the script does.

        Args:
            imported: variables that libraries have set during their import.
        """
        os.environ.clear()
        os.environ.update({**imported, **self.environment})
        os.chdir(self.folder)
        sys.argv = list(self.argv)
        import numpy as np

        # Else all workers would draw the same numbers.
        np.random.seed()
        runpy.run_path(self.argv[0], run_name="__main__")


@dataclass
class RayletWorkers:
    """The workers that were forked for a raylet."""

    raylet: int
    """Process id."""
    descriptor: int
    """File descriptor (pidfd) of that process, readable after its end."""
    workers: set[int] = field(default_factory=set)
    """pidfds of the living workers."""

    @classmethod
    def parse(cls, text: str) -> RayletWorkers:
        """Parse the text of `str`; this process has inherited the descriptors."""
        raylet, descriptor, *workers = map(int, text.split(","))
        return cls(raylet, descriptor, set(workers))

    def __str__(self) -> str:
        return ",".join(map(str, (self.raylet, *self.descriptors)))

    @property
    def descriptors(self) -> tuple[int, ...]:
        """All descriptors, the raylet's first."""
        return (self.descriptor, *self.workers)


class Server:
    """Serves requests one after the other: fork, ready, unload, retire."""

    def __init__(
        self,
        listener: socket.socket,
        device: Device,
        raylet: int | None = None,
        forked: Iterable[RayletWorkers] = (),
    ) -> None:
        """
        Args:
            listener: socket for requests.
            device: of the workers.
            raylet: the process that the server ends with.
            forked: workers from before `unload`.
        """
        self._listener = listener
        self._device = device
        self._raylet = raylet
        # Variables that libraries have set in the environment.
        self.variables: dict[str, str] = {}
        self._import_seconds: float | None = None
        self._is_retired = False
        self._forked: dict[int, RayletWorkers] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        for workers in forked:
            self._watch(workers)
        if raylet is not None:
            self._workers_of(raylet)

    def load(self) -> None:
        """Import the workers' libraries, once."""
        if self._import_seconds is None:
            begin, before = time.monotonic(), dict(os.environ)
            import_libraries(self._device)
            gc.collect()

            # The collector's marks would copy the pages that processes share.
            gc.freeze()
            self.variables = dict(os.environ.items() - before.items())
            self._import_seconds = time.monotonic() - begin

    def serve(self) -> Worker | None:
        """Answer requests until the server is to end. Returns a `Worker` in a forked process."""
        while not (
            self._is_retired and not any(forked.workers for forked in self._forked.values())
        ):
            requests = self._listener.fileno()
            # Ends of processes come before requests: a new raylet with the same process id must not
            # join the workers of an ended one.
            ready = min(self._poll.poll(), key=lambda event: event[0] == requests)[0]
            if ready != requests:
                ended = self._end_workers_of(ready)
                if ended is not None and ended == self._raylet:
                    return None
                continue
            connection, _ = self._listener.accept()
            with connection:
                worker = self._answer(connection)
            if worker is not None:
                return worker
        return None

    def _watch(self, forked: RayletWorkers) -> None:
        self._forked[forked.raylet] = forked
        for descriptor in forked.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def _end_workers_of(self, ended: int) -> int | None:
        """Close the descriptor of a process that has ended. If it was a raylet, end all its
        workers.

        Returns:
            The raylet's process id, if it was one.
        """
        for forked in self._forked.values():
            if ended == forked.descriptor:
                for worker in forked.workers:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(worker, signal.SIGKILL)
                del self._forked[forked.raylet]
                for descriptor in forked.descriptors:
                    self._close(descriptor)
                return forked.raylet
            if ended in forked.workers:
                forked.workers.remove(ended)
                break
        self._close(ended)
        return None

    def _close(self, descriptor: int) -> None:
        self._poll.unregister(descriptor)
        os.close(descriptor)

    def _answer(self, connection: socket.socket) -> Worker | None:
        connection.settimeout(REQUEST_SECONDS)
        if launcher.peer_user(connection) != os.getuid():
            return None
        streams: list[int] = []
        request: dict[str, Any] = {}
        try:
            first, streams, _, _ = socket.recv_fds(connection, 1, len(launcher.STANDARD_STREAMS))
            # A client has only checked that this server listens.
            if not first:
                return None
            request = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
            answer, worker = self._handle(request, streams)
            if worker is None:
                connection.sendall(json.dumps(answer).encode())
            return worker
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(f"a request was not understood: {error!r}", file=sys.stderr, flush=True)
            return None
        finally:
            for stream in streams:
                os.close(stream)
            if "unload" in request:
                self._reexecute()

    def _handle(
        self, request: Mapping[str, Any], streams: list[int]
    ) -> tuple[dict[str, object], Worker | None]:
        if "fork" in request:
            return self._fork(Worker(**request["fork"]), streams)
        if "ready" in request:
            self.load()
        if "retire" in request:
            self._is_retired = True
            self._poll.unregister(self._listener)
            self._listener.close()
        return {"seconds": self._import_seconds}, None

    def _fork(self, worker: Worker, streams: list[int]) -> tuple[dict[str, object], Worker | None]:
        self.load()
        forked, server = self._workers_of(int(worker.environment[RAYLET])), os.getpid()
        process = os.fork()
        if process == 0:
            try:
                self._reset_fork(server, streams)
            except BaseException:
                # It must not continue as a second server.
                os._exit(1)
            return {}, worker
        try:
            descriptor = os.pidfd_open(process)
        except ProcessLookupError:
            return {"process": process}, None  # it has ended already
        except OSError:
            # Without a descriptor the worker would outlive its raylet.
            os.kill(process, signal.SIGKILL)
            raise
        forked.workers.add(descriptor)
        self._poll.register(descriptor, select.POLLIN)
        return {"process": process}, None

    def _reset_fork(self, server: int, streams: list[int]) -> None:
        """Drop everything of the server except its libraries, in the forked process."""
        end_with(server)
        # Ray ends the complete group of a worker that has died.
        os.setpgid(0, 0)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in zip(launcher.STANDARD_STREAMS, streams, strict=True):
            os.dup2(stream, number)
        self._listener.close()
        for forked in self._forked.values():
            for descriptor in forked.descriptors:
                os.close(descriptor)

    def _workers_of(self, raylet: int) -> RayletWorkers:
        if raylet not in self._forked:
            self._watch(RayletWorkers(raylet, os.pidfd_open(raylet)))
        return self._forked[raylet]

    def _reexecute(self) -> None:
        """Drop all libraries by executing this program again, in the same process."""
        argv = [*command(self._device, self._listener), "--lazy"]
        argv += [] if self._raylet is None else ["--raylet", str(self._raylet)]
        argv += [f"--forked={forked}" for forked in self._forked.values()]
        inherited = [
            descriptor for forked in self._forked.values() for descriptor in forked.descriptors
        ]
        for descriptor in (self._listener.fileno(), *inherited):
            os.set_inheritable(descriptor, True)
        # exec keeps the process, and workers end only with the process.
        os.execv(sys.executable, argv)


def command(device: Device, listener: socket.socket) -> list[str]:
    """Return the command of a server that inherits a listening socket."""
    name = "rlhf_runtime.forkserver.server"
    options = ["--device", device.value, "--listener", str(listener.fileno())]
    return [sys.executable, "-P", "-m", name, *options]


def main() -> None:
    """Serve requests; in a forked process, run the worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--device", type=Device, required=True, help="of the workers")
    parser.add_argument("--owner", type=int, help="process that this one ends with")
    parser.add_argument(
        "--raylet", type=int, help="raylet that this process ends with; it need not be the parent"
    )
    parser.add_argument(
        "--forked",
        type=RayletWorkers.parse,
        action="append",
        default=[],
        help="raylet and inherited descriptors of what this process has forked for it",
    )
    parser.add_argument("--lazy", action="store_true", help="import when the first worker comes")
    options = parser.parse_args()
    if options.owner is not None:
        end_with(options.owner)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets workers that have ended
    listener = socket.socket(fileno=options.listener)
    server = Server(listener, options.device, options.raylet, options.forked)
    if not options.lazy:
        server.load()
    worker = server.serve()
    if worker is not None:
        worker.run(server.variables)


if __name__ == "__main__":
    main()
