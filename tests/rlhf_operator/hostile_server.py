"""A server that answers whatever bytes a test wants, and goes on as long as anybody listens."""

from __future__ import annotations

import itertools
import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field


@dataclass
class HostileServer:
    """What it was asked, and how much of its answers was taken."""

    port: int
    requests: list[bytes] = field(default_factory=list)
    sent: int = 0
    """Bytes that the other side's machine took."""
    gone: threading.Event = field(default_factory=threading.Event)
    """Set when a client went away before an answer's end."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def hostile_server(blocks: Callable[[], Iterable[bytes]]) -> Iterator[HostileServer]:
    """Answer every request with blocks of bytes, one after the other; then end the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = HostileServer(listener.getsockname()[1])
        thread = threading.Thread(target=_serve, args=(listener, blocks, server))
        thread.start()
        try:
            yield server
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()


def _request(connection: socket.socket) -> bytes:
    """All of it: a connection that ends with unread bytes is reset, and its answer lost."""
    request = b""
    while not _is_whole(request) and (more := connection.recv(1 << 16)):
        request += more
    return request


def _is_whole(request: bytes) -> bool:
    head, end, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)content-length: *([0-9]+)", head)
    return bool(end) and len(body) >= (int(length[1]) if length else 0)


def _serve(
    listener: socket.socket, blocks: Callable[[], Iterable[bytes]], server: HostileServer
) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:  # the end of the test
            return
        with connection:
            server.requests.append(_request(connection))
            try:
                for block in blocks():
                    connection.sendall(block)
                    server.sent += len(block)
            except OSError:
                server.gone.set()


def answer(
    body: bytes, status: str = "200 OK", *headers: str, length: int | None = None
) -> Callable[[], Iterable[bytes]]:
    """One answer of HTTP; `length` is what it says about its body."""
    lines = [f"HTTP/1.1 {status}", "Connection: close"]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    head = "\r\n".join([*lines, *headers, "", ""])
    return lambda: [head.encode(), body]


def endless(head: bytes, block: bytes) -> Callable[[], Iterable[bytes]]:
    """A beginning, and then the same bytes again and again."""
    return lambda: itertools.chain([head], itertools.repeat(block))


def drip(
    head: bytes, block: bytes, seconds: float, over: threading.Event
) -> Callable[[], Iterable[bytes]]:
    """The same, with a pause before each block, until the test is over."""

    def blocks() -> Iterator[bytes]:
        yield head
        while not over.wait(seconds):
            yield block

    return blocks
