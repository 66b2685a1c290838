"""The fork server: imports what workers need, then forks one whenever it is asked to.

It has one thread and never touches a device, so what it forks is as good as new. It ends the
workers of a raylet that has ended. It ends with its owner or with the one raylet that it was
started for, and the kernel ends its workers with it.

    python -P -m rlhf_runtime.forkserver.server --listener DESCRIPTOR --device cpu [--owner PID]
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

from rlhf_api.resources import Device
from rlhf_runtime import fate
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.workers.libraries import ENVIRONMENT, import_libraries

REQUEST_SECONDS = 10.0
"""How long a request may take to arrive."""
WAITING = 128
"""Requests that may wait while libraries are imported."""


@dataclass(frozen=True)
class Worker:
    """What a forked process is to become."""

    words: list[str]
    """A script, and what it is called with."""
    environment: Mapping[str, str]
    folder: str

    def run(self) -> None:
        """Become it; returns or raises where the script does."""
        kept = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        os.environ.clear()
        os.environ.update(kept | dict(self.environment))
        os.chdir(self.folder)
        sys.argv = list(self.words)
        import numpy as np

        np.random.seed()  # else all workers would draw the same numbers
        runpy.run_path(self.words[0], run_name="__main__")


@dataclass
class Served:
    """A raylet that workers were forked for."""

    process: int
    descriptor: int
    """Of the process: it is readable when that has ended."""
    workers: set[int] = field(default_factory=set)
    """Descriptors of those that live."""

    @classmethod
    def parse(cls, text: str) -> Served:
        """What `str` says of one, whose descriptors this process has inherited."""
        process, descriptor, *workers = map(int, text.split(","))
        return cls(process, descriptor, set(workers))

    def __str__(self) -> str:
        return ",".join(map(str, (self.process, *self.descriptors)))

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.descriptor, *self.workers)


class Server:
    """Serves requests one after the other: fork, ready, unload."""

    def __init__(
        self,
        listener: socket.socket,
        device: Device,
        raylet: int | None = None,
        served: Iterable[Served] = (),
    ) -> None:
        """
        Args:
            listener: where requests come in.
            device: of the workers.
            raylet: the server ends with this process.
            served: raylets that this process has forked for before.
        """
        self._listener = listener
        self._device = device
        self._raylet = raylet
        self._import_seconds: float | None = None
        self._served: dict[int, Served] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        for each in served:
            self._serve_raylet(each)
        if raylet is not None:
            self._raylet_of(raylet)

    def load(self) -> None:
        """Import the workers' libraries, once."""
        if self._import_seconds is None:
            begin = time.monotonic()
            import_libraries(self._device)
            gc.collect()
            gc.freeze()  # the collector's marks would copy the pages that processes share
            self._import_seconds = time.monotonic() - begin

    def serve(self) -> Worker | None:
        """Answer until the server's raylet ends; in a forked process, what it is to become."""
        while True:
            ready, _ = self._poll.poll()[0]
            if ready != self._listener.fileno():
                ended = self._forget(ready)
                if ended is not None and ended == self._raylet:
                    return None
                continue
            connection, _ = self._listener.accept()
            with connection:
                worker = self._answer(connection)
            if worker is not None:
                return worker

    def _serve_raylet(self, raylet: Served) -> None:
        """Notice when a raylet or one of its workers ends."""
        self._served[raylet.process] = raylet
        for descriptor in raylet.descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def _forget(self, ended: int) -> int | None:
        """Close the descriptor of a process that has ended; of a raylet, end all its workers too.

        Returns:
            The raylet's process, if it was one.
        """
        for served in self._served.values():
            if ended == served.descriptor:
                for worker in served.workers:
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(worker, signal.SIGKILL)
                del self._served[served.process]
                for descriptor in served.descriptors:
                    self._close(descriptor)
                return served.process
            if ended in served.workers:
                served.workers.remove(ended)
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
        try:
            _, streams, _, _ = socket.recv_fds(connection, 1, len(launcher.STANDARD_STREAMS))
            request = json.loads(b"".join(iter(lambda: connection.recv(1 << 16), b"")))
            answer, worker = self._obey(request, streams)
            if worker is None:
                connection.sendall(json.dumps(answer).encode())
            if "unload" in request:
                self._begin_anew()
            return worker
        except (OSError, ValueError) as error:
            print(f"a request was not understood: {error!r}", file=sys.stderr, flush=True)
            return None
        finally:
            for stream in streams:
                os.close(stream)

    def _obey(
        self, request: Mapping[str, Any], streams: list[int]
    ) -> tuple[dict[str, object], Worker | None]:
        if "fork" not in request:
            if "ready" in request:
                self.load()
            return {"seconds": self._import_seconds}, None
        self.load()
        worker = Worker(**request["fork"])
        raylet = self._raylet_of(int(worker.environment[fate.RAYLET]))
        process = os.fork()
        if process:
            with suppress(ProcessLookupError):  # it has ended already
                descriptor = os.pidfd_open(process)
                raylet.workers.add(descriptor)
                self._poll.register(descriptor, select.POLLIN)
            return {"process": process}, None
        fate.end_with(os.getppid())
        os.setpgid(0, 0)  # Ray ends the whole group of a worker that has died
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in zip(launcher.STANDARD_STREAMS, streams, strict=True):
            os.dup2(stream, number)
        self._listener.close()
        for served in self._served.values():
            for descriptor in served.descriptors:
                os.close(descriptor)
        return {}, worker

    def _raylet_of(self, process: int) -> Served:
        if process not in self._served:
            self._serve_raylet(Served(process, os.pidfd_open(process)))
        return self._served[process]

    def _begin_anew(self) -> None:
        """Forget all libraries; this stays the process that workers end with."""
        words = [*command(self._device, self._listener), "--lazy"]
        words += [] if self._raylet is None else ["--raylet", str(self._raylet)]
        words += [f"--served={served}" for served in self._served.values()]
        inherited = [each for served in self._served.values() for each in served.descriptors]
        for descriptor in (self._listener.fileno(), *inherited):
            os.set_inheritable(descriptor, True)
        os.execv(sys.executable, words)


def command(device: Device, listener: socket.socket) -> list[str]:
    """The command of a server that inherits a listening socket."""
    name = "rlhf_runtime.forkserver.server"
    options = ["--device", device.value, "--listener", str(listener.fileno())]
    return [sys.executable, "-P", "-m", name, *options]


def main() -> None:
    """Serve; in a process that was forked, be the worker."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--listener", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--device", type=Device, required=True, help="of the workers")
    parser.add_argument("--owner", type=int, help="process that this one ends with")
    parser.add_argument("--raylet", type=int, help="the same, not its parent")
    parser.add_argument("--served", type=Served.parse, action="append", default=[], help="by fork")
    parser.add_argument("--lazy", action="store_true", help="import when the first worker comes")
    options = parser.parse_args()
    if options.owner is not None:
        fate.end_with(options.owner)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets workers that have ended
    listener = socket.socket(fileno=options.listener)
    server = Server(listener, options.device, options.raylet, options.served)
    if not options.lazy:
        server.load()
    worker = server.serve()
    if worker is not None:
        worker.run()


if __name__ == "__main__":
    main()
