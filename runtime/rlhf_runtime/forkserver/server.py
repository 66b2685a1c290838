"""The fork server: imports what workers need, then forks one whenever it is asked to.

It has one thread and never touches a device, so what it forks is as good as new. It ends with its
owner or with the raylet that it forks for, and the kernel ends its workers with it.

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
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.resources import Device
from rlhf_runtime import fate
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.workers.libraries import import_libraries

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
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.argv = list(self.words)
        import numpy as np

        np.random.seed()  # else all workers would draw the same numbers
        runpy.run_path(self.words[0], run_name="__main__")


class Server:
    """Serves requests one after the other: fork, ready, unload."""

    def __init__(self, listener: socket.socket, device: Device) -> None:
        self._listener = listener
        self._device = device
        self._import_seconds: float | None = None
        self._raylets: dict[int, int] = {}
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)

    def load(self) -> None:
        """Import the workers' libraries, once."""
        if self._import_seconds is None:
            begin = time.monotonic()
            import_libraries(self._device)
            gc.collect()
            gc.freeze()  # the collector's marks would copy the pages that processes share
            self._import_seconds = time.monotonic() - begin

    def serve(self) -> Worker | None:
        """Answer until a raylet ends; in a process that was forked, what it is to become."""
        while True:
            for ready, _ in self._poll.poll():
                if ready != self._listener.fileno():
                    return None
                connection, _ = self._listener.accept()
                with connection:
                    worker = self._answer(connection)
                if worker is not None:
                    return worker

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
        self.end_with(int(worker.environment[fate.RAYLET]))
        process = os.fork()
        if process:
            return {"process": process}, None
        fate.end_with(os.getppid())
        os.setpgid(0, 0)  # Ray ends the whole group of a worker that has died
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for number, stream in zip(launcher.STANDARD_STREAMS, streams, strict=True):
            os.dup2(stream, number)
        self._listener.close()
        for raylet in self._raylets.values():
            os.close(raylet)
        return {}, worker

    def end_with(self, raylet: int) -> None:
        """Notice when a raylet ends."""
        if raylet not in self._raylets:
            self._raylets[raylet] = os.pidfd_open(raylet)
            self._poll.register(self._raylets[raylet], select.POLLIN)

    def _begin_anew(self) -> None:
        """Forget all libraries; this stays the process that workers end with."""
        os.set_inheritable(self._listener.fileno(), True)
        raylets = [f"--raylet={raylet}" for raylet in self._raylets]
        os.execv(sys.executable, [*command(self._device, self._listener), "--lazy", *raylets])


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
    parser.add_argument("--raylet", type=int, action="append", help="the same, not its parent")
    parser.add_argument("--lazy", action="store_true", help="import when the first worker comes")
    options = parser.parse_args()
    if options.owner is not None:
        fate.end_with(options.owner)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets workers that have ended
    server = Server(socket.socket(fileno=options.listener), options.device)
    for raylet in options.raylet or ():
        server.end_with(raylet)
    if not options.lazy:
        server.load()
    worker = server.serve()
    if worker is not None:
        worker.run()


if __name__ == "__main__":
    main()
