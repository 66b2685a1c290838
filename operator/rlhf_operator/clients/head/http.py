"""One HTTP request to a head, within limits of time and size that the head cannot extend.

The head runs its user's code, so its answers are not trusted: they are read up to a limit of bytes
and of time, never decompressed, and redirects are not followed.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from rlhf_operator.clients.head.addresses import SYSTEM_CERTIFICATES, Address, Certificates
from rlhf_operator.clients.head.protocol import HeadUnreachable

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0
"""Time limit from the request to the last byte of its answer."""
EXCERPT_CHARACTERS: Final = 300
_READ_FACTOR: Final = 20
"""An excerpt reads this many times its length, since removing spaces shortens it."""
_BLOCK_BYTES: Final = 1 << 16


class ConnectionRefused(HeadUnreachable):
    """The machine answers, and no process listens at the port."""


class AnswerTooLong(HeadUnreachable):
    """The answer is longer than its limit."""


@dataclass(frozen=True)
class Answer:
    """The answer of a head or of a proxy."""

    status: int
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode("utf-8", errors="replace")


class HttpClient:
    """Connections to any number of heads, for one event loop."""

    def __init__(
        self,
        certificates: Certificates = SYSTEM_CERTIFICATES,
        connect_seconds: float = CONNECT_SECONDS,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        """The files of `certificates` are read with the first request."""
        self._certificates = certificates
        self._connect_seconds = connect_seconds
        self._answer_seconds = answer_seconds
        self._opened: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """End all connections."""
        if self._opened is not None:
            await self._opened.close()

    async def exchange(
        self,
        method: str,
        address: Address,
        path: str,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> Answer:
        """Send a request and read its complete answer.

        Args:
            method: GET or POST.
            address: the port of the head.
            path: quoted, with a leading slash.
            limit_bytes: maximum size of the answer's body.
            body: JSON to send.

        Raises:
            ConnectionRefused: no process listens at the port.
            AnswerTooLong: the body is longer than the limit.
            HeadUnreachable: no complete answer in time, or it is not HTTP.
        """
        headers = {**address.headers, "Accept-Encoding": "identity"}
        if body is not None:
            headers["Content-Type"] = "application/json"
        request = f"{method} {address.url}{path.partition('?')[0]}"
        url = URL(f"{address.url}{path}", encoded=True)
        try:
            async with (
                asyncio.timeout(self._answer_seconds),
                self._session().request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                return Answer(response.status, await _read(response, limit_bytes, request))
        except TimeoutError:
            kind, cause = HeadUnreachable, "the time limit was exceeded"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = ConnectionRefused if _is_refusal(error) else HeadUnreachable
            cause = excerpt(_describe(error), address.headers.values())
        # Raised outside of the handler: the original error would be shown as the cause, and may
        # contain secrets.
        raise kind(f"{request}: no answer: {cause}")

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            # No limit here: RayHeads limits the number of requests.
            connector = aiohttp.TCPConnector(limit=0, ssl=_tls(self._certificates))
            self._opened = aiohttp.ClientSession(
                connector=connector,
                # One head must not set cookies for requests to another one.
                cookie_jar=aiohttp.DummyCookieJar(),
                # The total time is limited in `exchange`, with the reading of the body.
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
                auto_decompress=False,
                read_bufsize=_BLOCK_BYTES,
            )
        return self._opened


def excerpt(text: str, secrets: Iterable[str], characters: int = EXCERPT_CHARACTERS) -> str:
    """Return the beginning of a foreign text as one printable line without credentials.

    Args:
        text: written by somebody else.
        secrets: values to remove, such as headers with credentials.
        characters: maximum length of the line.
    """
    for secret in secrets:
        word = secret.removeprefix("Bearer ")
        if word:
            text = text.replace(word, "[secret]")
    beginning = text[: characters * _READ_FACTOR]
    line = "".join(letter if letter.isprintable() else " " for letter in beginning)
    line = " ".join(line.split())
    return line if len(line) <= characters else f"{line[: characters - 3]}..."


def _tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    if certificates.client is not None:
        context.load_cert_chain(certificates.client, certificates.client_key)
    return context


async def _read(response: aiohttp.ClientResponse, limit: int, request: str) -> bytes:
    blocks = []
    length = 0
    is_complete = False
    try:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("the answer is compressed, though that was not requested")
        async for block in response.content.iter_any():
            length += len(block)
            if length > limit:
                raise AnswerTooLong(f"{request}: an answer of more than {limit} bytes")
            blocks.append(block)
        is_complete = True
    finally:
        # A connection with unread bytes cannot serve another request.
        if not is_complete:
            response.close()
    return b"".join(blocks)


def _describe(error: Exception) -> str:
    # Texts of the libraries show objects and addresses in memory.
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is unknown"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or 'it failed'}"
    return f"{type(error).__name__}: {error}"


def _is_refusal(error: Exception) -> bool:
    """True if no process listens at any of the host's addresses."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
