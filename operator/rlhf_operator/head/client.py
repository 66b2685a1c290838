"""One HTTP request to a head, within limits of time and memory that the head cannot stretch.

The head runs its user's code, so its answers are not trusted: they are read up to a limit in bytes
and in time, not decompressed, and a redirect is an answer, not an order.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from dataclasses import dataclass
from typing import Final

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NameResolutionError, NewConnectionError

from rlhf_operator.head.addresses import SYSTEM_CERTIFICATES, Address, Certificates
from rlhf_operator.head.excerpt import excerpt
from rlhf_operator.head.protocol import HeadUnreachable

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0
"""From the request to the last byte of its answer."""
_BLOCK_BYTES: Final = 1 << 16
_HEADER_BYTES: Final = 1 << 16
_HOSTS: Final = 256
"""Heads whose connections are kept open."""
_CONNECTIONS: Final = 32
"""Connections to one host that are kept open: through a proxy all heads are one host."""


class NobodyListens(HeadUnreachable):
    """The machine is there, and nothing listens at the port."""


class AnswerTooLong(HeadUnreachable):
    """The answer has more bytes than it may have."""


@dataclass(frozen=True)
class Answer:
    """A head's, or a proxy's."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")


class HttpClient:
    """Connections to any number of heads. Threads may share it."""

    def __init__(
        self,
        certificates: Certificates = SYSTEM_CERTIFICATES,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """The files of `certificates` are read when a connection is made."""
        self._pools = urllib3.PoolManager(
            num_pools=_HOSTS,
            maxsize=_CONNECTIONS,
            retries=False,
            timeout=urllib3.Timeout(connect=connect_seconds, read=answer_seconds),
            cert_reqs="CERT_REQUIRED",
            ca_certs=certificates.authority,
            cert_file=certificates.client,
            key_file=certificates.client_key,
        )
        self._pools.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def close(self) -> None:
        """End all connections."""
        self._pools.clear()

    def exchange(
        self,
        method: str,
        address: Address,
        path: str,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request, and read its whole answer.

        Args:
            method: GET or POST.
            address: Where to.
            path: With a slash first, and quoted.
            limit_bytes: How long the answer's body may be.
            body: JSON to send.

        Raises:
            NobodyListens: The connection was refused.
            AnswerTooLong: The body is longer than the limit.
            HeadUnreachable: There was no complete answer in time, or it is not one of HTTP.
        """
        headers = {**address.headers, "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        what = f"{method} {address.url}{path.partition('?')[0]}"
        try:
            response = self._pools.request(
                method,
                f"{address.url}{path}",
                body=body,
                headers=headers,
                redirect=False,
                preload_content=False,
                decode_content=False,
            )
            return Answer(response.status, _read(response, limit_bytes, what))
        except (HTTPError, OSError, http.client.HTTPException, ValueError) as error:
            words = excerpt(_words(error), address.headers.values())
            kind = NobodyListens if _is_refusal(error) else HeadUnreachable
        # Outside of the handler: the cause would be shown with the new error, and may hold secrets.
        raise kind(f"{what}: no answer: {words}")


def _read(response: urllib3.BaseHTTPResponse, limit: int, what: str) -> bytes:
    """The body. A connection that was not read to its end is closed: it is of no more use."""
    blocks = []
    length = 0
    done = False
    try:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("the answer is compressed, which was not asked for")
        while block := response.read1(_BLOCK_BYTES, decode_content=False):
            length += len(block)
            if length > limit:
                raise AnswerTooLong(f"{what}: an answer of more than {limit} bytes")
            blocks.append(block)
        done = True
    finally:
        if not done:
            response.close()
        response.release_conn()
    return b"".join(blocks)


def _words(error: Exception) -> str:
    """What went wrong, without the objects and addresses in memory that urllib3 shows."""
    if isinstance(error, NameResolutionError):
        return "its name is unknown"
    if isinstance(error, NewConnectionError):
        cause = error.__cause__
        return f"no connection: {cause.strerror if isinstance(cause, OSError) else 'it failed'}"
    return f"{type(error).__name__}: {error}"


def _is_refusal(error: Exception) -> bool:
    return isinstance(error, NewConnectionError) and isinstance(
        error.__cause__, ConnectionRefusedError
    )


class _PunctualStream(io.RawIOBase):
    """What a socket receives until a point in time.

    A socket's own limit is for each of its reads: who sends a byte now and then never exceeds it.
    """

    def __init__(self, source: socket.socket, seconds: float) -> None:
        super().__init__()
        self._source = source
        self._held = source.makefile("rb")  # the socket lives until this is closed
        self._seconds = seconds
        self._end = time.monotonic() + seconds
        self.allowance: int | None = None
        """Bytes that may still come. None: any number."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer did not end in time")
        self._source.settimeout(left)
        try:
            received = self._source.recv_into(buffer)
        finally:
            self._source.settimeout(self._seconds)
        if self.allowance is not None:
            self.allowance -= received
            if self.allowance < 0:
                raise OSError("more bytes than may come")
        return received

    def close(self) -> None:
        self._held.close()
        super().close()


class _PunctualResponse(http.client.HTTPResponse):
    """An answer whose status, headers and body have one limit in time together."""

    def __init__(
        self,
        sock: socket.socket,
        debuglevel: int = 0,
        method: str | None = None,
        url: str | None = None,
    ) -> None:
        super().__init__(sock, debuglevel, method, url)
        self.fp.close()
        self._stream = _PunctualStream(sock, sock.gettimeout() or ANSWER_SECONDS)
        self.fp = io.BufferedReader(self._stream)

    def begin(self) -> None:
        self._stream.allowance = _HEADER_BYTES
        super().begin()
        self._stream.allowance = None
        if self.msg.defects:  # urllib3 would log them, whatever is in them
            raise http.client.HTTPException("headers that are not headers")


class _Connection(HTTPConnection):
    response_class = _PunctualResponse


class _TlsConnection(HTTPSConnection):
    response_class = _PunctualResponse


class _Pool(HTTPConnectionPool):
    ConnectionCls = _Connection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection
