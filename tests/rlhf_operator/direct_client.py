"""Requests to pretended heads without a network: the operator's own client, but for its sockets."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

from rlhf_operator.clients.head.addresses import Address
from rlhf_operator.clients.head.http import Answer, AnswerTooLong, HttpClient
from rlhf_operator.clients.head.protocol import HeadUnreachable

from .fake_head import FakeHeads
from .fake_head_server import Request


class DirectClient(HttpClient):
    """Hands requests to the heads themselves. What calls it is as real as ever."""

    def __init__(self, heads: FakeHeads) -> None:
        self._heads = heads
        self.before: Callable[[str], None] = lambda what: None
        """Told of each request before it has an effect; may raise."""
        self.after: Callable[[str], None] = lambda what: None
        """Told of each request after that: its answer may be lost."""

    async def close(self) -> None:
        """There is nothing to close."""

    async def exchange(
        self,
        method: str,
        address: Address,
        path: str,
        limit_bytes: int,
        body: bytes | None = None,
    ) -> Answer:
        what = f"{method} {address.url}{path}"
        self.before(what)
        parts = urlsplit(f"{address.url}{path}")
        token = address.headers["Authorization"].removeprefix("Bearer ")
        query = parse_qs(parts.query)
        reply = self._heads.answer(Request(method, parts.path, query, token, body or b""))
        self.after(what)
        if reply is None:
            raise HeadUnreachable(f"{what}: no answer")
        if len(reply.body) > limit_bytes:
            raise AnswerTooLong(f"{what}: an answer of more than {limit_bytes} bytes")
        return Answer(reply.status, reply.body)
