"""One HTTP request to a head, within limits of time and memory that the head cannot stretch.

The head runs its user's code, so its answers are not trusted: they are read up to a limit in bytes
and in time, not decompressed, and a redirect is an answer, not an order.
"""

from __future__ import annotations

import asyncio
import errno
import ssl
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

from rlhf_operator.clients.head.addresses import SYSTEM_CERTIFICATES, Address, Certificates
from rlhf_operator.clients.head.excerpt import excerpt
from rlhf_operator.clients.head.protocol import HeadUnreachable

CONNECT_SECONDS: Final = 3.0
ANSWER_SECONDS: Final = 10.0
"""From the request to the last byte of its answer."""
_BLOCK_BYTES: Final = 1 << 16


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
        url = URL(f"{address.url}{path}", encoded=True)
        try:
            async with (
                asyncio.timeout(self._answer_seconds),
                self._session().request(
                    method, url, data=body, headers=headers, allow_redirects=False
                ) as response,
            ):
                return Answer(response.status, await _read(response, limit_bytes, what))
        except TimeoutError:
            kind, words = HeadUnreachable, "it did not end in time"
        except (aiohttp.ClientError, OSError, ValueError) as error:
            kind = NobodyListens if _is_refusal(error) else HeadUnreachable
            words = excerpt(_words(error), address.headers.values())
        # Outside of the handler: the cause would be shown with the new error, and may hold secrets.
        raise kind(f"{what}: no answer: {words}")

    def _session(self) -> aiohttp.ClientSession:
        if self._opened is None:
            connector = aiohttp.TCPConnector(limit=0, ssl=_tls(self._certificates))
            self._opened = aiohttp.ClientSession(
                connector=connector,
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._connect_seconds),
                auto_decompress=False,
                read_bufsize=_BLOCK_BYTES,
            )
        return self._opened


def _tls(certificates: Certificates) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certificates.authority)
    if certificates.client is not None:
        context.load_cert_chain(certificates.client, certificates.client_key)
    return context


async def _read(response: aiohttp.ClientResponse, limit: int, what: str) -> bytes:
    """The body. A connection that was not read to its end is closed: it is of no more use."""
    blocks = []
    length = 0
    done = False
    try:
        if response.headers.get("Content-Encoding", "identity") != "identity":
            raise ValueError("the answer is compressed, which was not asked for")
        async for block in response.content.iter_any():
            length += len(block)
            if length > limit:
                raise AnswerTooLong(f"{what}: an answer of more than {limit} bytes")
            blocks.append(block)
        done = True
    finally:
        if not done:
            response.close()
    return b"".join(blocks)


def _words(error: Exception) -> str:
    """What went wrong, without the objects and addresses in memory that libraries show."""
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its name is unknown"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"no connection: {error.os_error.strerror or 'it failed'}"
    return f"{type(error).__name__}: {error}"


def _is_refusal(error: Exception) -> bool:
    """Whether nobody listens at any of the host's addresses."""
    return isinstance(error, OSError) and error.errno == errno.ECONNREFUSED
