"""Messages of conversations' processes and their server: a length, and a JSON text.

JSON, because the owner must be able to read what a hostile process sends. Standard library only.
"""

from __future__ import annotations

import json
import os
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any

LENGTH = struct.Struct("!I")
# A longer message is none of ours.
MAX_BYTES = 1 << 26
# Python writes deeper values only with luck: its limit counts the callers, too.
MAX_DEPTH = 100

Message = dict[str, Any]


class BadFrame(Exception):
    """Bytes that are no message."""


def encode(message: Message) -> bytes:
    """Serialize a message."""
    text = json.dumps(message, separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + text


def length_of(header: bytes) -> int:
    """Return the number of bytes that follow a header.

    Raises:
        BadFrame: more than a message may have.
    """
    (length,) = LENGTH.unpack(header)
    if length > MAX_BYTES:
        raise BadFrame(f"a message of {length} bytes, allowed {MAX_BYTES}")
    return int(length)


def decode(text: bytes) -> Message:
    """Read the JSON text of a message.

    Raises:
        BadFrame: it is not a JSON object.
    """
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFrame(f"no JSON text: {error}") from None
    if not isinstance(message, dict):
        raise BadFrame(f"a JSON value of type {type(message).__name__}, allowed an object")
    # Few brackets cannot be nested deep, and most messages have few.
    if text.count(b"[") + text.count(b"{") > MAX_DEPTH and is_deep(message, MAX_DEPTH):
        raise BadFrame(f"a value that is nested deeper than {MAX_DEPTH} levels")
    return message


def is_deep(value: Any, max_depth: int) -> bool:
    """True if lists and objects of a JSON value are nested deeper than a limit."""
    level = _containers([value])
    for _ in range(max_depth):
        level = [inner for outer in level for inner in _containers(_contents(outer))]
        if not level:
            return False
    return True


def _containers(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if isinstance(value, Mapping | list | tuple)]


def _contents(container: Any) -> Sequence[Any]:
    return list(container.values()) if isinstance(container, Mapping) else container


def send(connection: socket.socket, message: Message) -> None:
    """Send a message; waits until it is sent."""
    connection.sendall(encode(message))


def receive(connection: socket.socket, max_descriptors: int = 0) -> tuple[Message, list[int]]:
    """Wait for a message, and for file descriptors that come with it.

    Raises:
        EOFError: the other end has closed the connection.
    """
    header, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, max_descriptors)
    for descriptor in descriptors:
        # Programs that a tool starts must not get them.
        os.set_inheritable(descriptor, False)
    if not header:
        raise EOFError
    header += _receive_exactly(connection, LENGTH.size - len(header))
    return decode(_receive_exactly(connection, length_of(header))), descriptors


def _receive_exactly(connection: socket.socket, count: int) -> bytes:
    content = bytearray()
    while len(content) < count:
        part = connection.recv(min(count - len(content), 1 << 20))
        if not part:
            raise EOFError
        content += part
    return bytes(content)
