"""What a raylet starts in place of a worker: has the node's fork server make the worker.

As a program it takes the words that Ray gives to its worker. Standard library only, and started
without site packages, for it stands before a start that somebody waits for.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import sys

SERVER = "RLHF_FORK_SERVER"
"""The fork server's name in the environment. Unset: that of the raylet's own."""
RAYLET_SOCKET = "--raylet-name="
RAY_SETUP_OPTIONS = ("--language=", "--serialized-runtime-env-context=")
"""Words that Ray adds for a program of its own, which stands here otherwise."""
STANDARD_STREAMS = (0, 1, 2)
_CREDENTIALS = struct.Struct("3i")


def command() -> list[str]:
    """The command that, before a worker's script and its words, has the worker forked."""
    return [sys.executable, "-I", "-S", __file__]


def name_for(raylet_socket: str) -> str:
    """The name of the fork server for the raylet that listens at a path, in its environment."""
    return (
        os.environ.get(SERVER) or "rlhf-" + hashlib.sha256(raylet_socket.encode()).hexdigest()[:32]
    )


def address_of(name: str) -> str:
    """Where a fork server listens: in no folder, so that nothing is left of one that is killed."""
    return f"\0{name}"


def connect(name: str) -> socket.socket:
    """A connection to the fork server of a name.

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
    """The user of the process at the other end."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(credentials)[1])


def request(name: str, message: dict[str, object]) -> socket.socket:
    """Ask the fork server of a name for something; what it answers is read from the connection.

    It is given this process's standard streams, for the worker that it forks.

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
    """Have a worker forked that runs a script with words; whether that was done."""
    worker = {"argv": argv, "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        with request(name, {"fork": worker}) as connection:
            return bool(connection.recv(1 << 16))
    except OSError:
        return False


def main(argv: list[str]) -> None:
    """Have the worker forked; where no server answers, become the worker."""
    argv = [word for word in argv if not word.startswith(RAY_SETUP_OPTIONS)]
    raylet = next((word for word in argv if word.startswith(RAYLET_SOCKET)), "")
    if not fork(name_for(raylet.removeprefix(RAYLET_SOCKET)), argv):
        os.execv(sys.executable, [sys.executable, *argv])


if __name__ == "__main__":
    main(sys.argv[1:])
