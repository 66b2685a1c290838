"""Client of a fork server: starts it and sends requests. Used by drivers and by tasks on nodes."""

from __future__ import annotations

import os
import secrets
import select
import socket
import subprocess
from collections.abc import Sequence
from typing import Protocol

from rlhf_api.spec.resources import Device
from rlhf_runtime.forkserver import launcher, server
from rlhf_runtime.hooks import Hook, noop

# Interval of checks while libraries are imported.
POLL_SECONDS = 0.1


class ForkServer(Protocol):
    """The process that forks the workers of a command on one machine."""

    name: str

    def revive(self) -> None:
        """Restart it if it has died, for example because of memory pressure."""

    def close(self) -> None:
        """Release it."""


class OwnForkServer:
    """A server that ends with this process, together with its workers."""

    def __init__(self, device: Device, name: str = "") -> None:
        """Start the server, which begins to import. `close` must follow.

        Args:
            device: of the workers.
            name: unique; by default a random one.
        """
        self.name = name or f"rlhf-{secrets.token_hex(16)}"
        self._device = device
        self._process = self._start()

    def revive(self) -> None:
        """Restart it if it has died."""
        if not self.is_alive:
            self._process = self._start()

    @property
    def is_alive(self) -> bool:
        """True while its process runs."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it, and with it the remaining workers."""
        self._process.kill()
        self._process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        owner = ["--owner", str(os.getpid())]
        with _listen(self.name) as listener:
            return subprocess.Popen(
                [*server.command(self._device, listener), *owner],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listener.fileno()],
                # The terminal's signals are meant for the driver only.
                process_group=0,
            )


def start_server(name: str, device: Device, raylet: int | None = None) -> None:
    """Start a node's server, unless it has one of that name. It is no child of this process.

    Args:
        name: of the server.
        device: of the workers.
        raylet: the process that it ends with; None: it ends with its container.
    """
    try:
        listener = _listen(name)
    except OSError:
        return  # it listens already
    with listener:
        words = server.command(device, listener)
        words += [] if raylet is None else ["--raylet", str(raylet)]
        subprocess.run(
            # The shell exits at once, so the server becomes an orphan.
            ["/bin/sh", "-c", 'exec "$@" &', "sh", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
            start_new_session=True,
            check=True,
        )


def wait_until_ready(name: str, poll: Hook) -> bool:
    """Wait until a server has imported its libraries.

    Args:
        name: of the server.
        poll: called repeatedly; an exception from it ends the wait.

    Returns:
        True if it is ready; False if it has ended.
    """
    return _request(name, {"ready": True}, poll)


def retire(name: str) -> bool:
    """Let a server end after its last worker. Returns False if it does not answer."""
    return _request(name, {"retire": True}, noop)


def unload(name: str, poll: Hook) -> bool:
    """Let a server drop its libraries until the next worker. Returns False if it does not
    answer."""
    return _request(name, {"unload": True}, poll)


def _listen(name: str) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(launcher.address_of(name))
        listener.listen(server.MAX_WAITING_REQUESTS)
    except OSError:
        listener.close()
        raise
    return listener


def _request(name: str, request: dict[str, object], poll: Hook) -> bool:
    try:
        with launcher.request(name, request) as connection:
            while not _readable([connection]):
                poll()
            return bool(connection.recv(1 << 16))
    except OSError:
        return False


def _readable(connections: Sequence[socket.socket]) -> bool:
    return bool(select.select(connections, [], [], POLL_SECONDS)[0])
