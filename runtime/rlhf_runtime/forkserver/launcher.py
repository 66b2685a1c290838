"""The program that a raylet starts instead of a worker: it lets the node's fork server make the
worker.

It gets the arguments that Ray gives to its worker. Standard library only, without site packages:
every start of a worker waits for it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys

# Environment variable with the fork server's name. Unset: derived from the raylet's socket.
SERVER = "RLHF_FORK_SERVER"
RAYLET_SOCKET = "--raylet-name="
# Arguments for Ray's own setup program, which this one replaces.
RAY_SETUP_OPTIONS = ("--language=", "--serialized-runtime-env-context=")
STANDARD_STREAMS = (0, 1, 2)
_CREDENTIALS = struct.Struct("3i")


def command() -> list[str]:
    """Return the command that is put before a worker's script and arguments."""
    return [sys.executable, "-I", "-S", __file__]


def name_for(raylet_socket: str) -> str:
    """Return the name of the fork server for the raylet with this socket, in this environment."""
    return (
        os.environ.get(SERVER) or "rlhf-" + hashlib.sha256(raylet_socket.encode()).hexdigest()[:32]
    )


def address_of(name: str) -> str:
    """Return the abstract socket address of a fork server."""
    # An abstract socket has no file that a killed server could leave behind.
    return f"\0{name}"


def connect(name: str) -> socket.socket:
    """Connect to a fork server.

    Raises:
        OSError: there is none, or it belongs to another user, who must not see an environment.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address_of(name))
        if peer_user(connection) != os.getuid():
            raise PermissionError(f"the fork server {name} belongs to another user")
    except OSError:
        connection.close()
        raise
    return connection


def peer_user(connection: socket.socket) -> int:
    """Return the user id of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def request(name: str, message: dict[str, object]) -> socket.socket:
    """Send a request to a fork server; the answer is read from the returned connection.

    The server gets this process's standard streams, for the worker that it forks.

    Raises:
        OSError: there is no such server.
    """
    connection = connect(name)
    try:
        socket.send_fds(connection, [b"\n"], STANDARD_STREAMS)
        connection.sendall(json.dumps(message).encode())
        connection.shutdown(socket.SHUT_WR)
    except OSError:
        connection.close()
        raise
    return connection


def fork(name: str, argv: list[str]) -> bool:
    """Let the server fork a worker that runs a script with arguments. Returns False if it does
    not."""
    worker = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        with request(name, {"fork": worker}) as connection:
            return bool(connection.recv(1 << 16))
    except OSError:
        return False


def main(argv: list[str]) -> None:
    """Let the worker be forked; become the worker if no server answers."""
    argv = [word for word in argv if not word.startswith(RAY_SETUP_OPTIONS)]
    raylet = next((word for word in argv if word.startswith(RAYLET_SOCKET)), "")
    if not fork(name_for(raylet.removeprefix(RAYLET_SOCKET)), argv):
        os.execv(sys.executable, [sys.executable, *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
