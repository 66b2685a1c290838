"""One connection to a server. All methods belong to the event loop that has made it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from mcp import Client, MCPError
from mcp.types import CONNECTION_CLOSED, INVALID_PARAMS, CallToolResult, Tool

from rlhf_runtime.environments.tool_servers.transports import ServerTransport

# Limit of an orderly end, and of one by force.
END_SECONDS = 5.0
# Time for a connection that ends to say why.
REASON_SECONDS = 1.0
MAX_PAGES = 100


class ConnectFailed(Exception):
    """There is no connection; the text says what came instead.

    last_words: what is known about the server's last actions; may be empty.
    """

    def __init__(self, text: str, last_words: str) -> None:
        super().__init__(text)
        self.last_words = last_words


class ConnectionLost(Exception):
    """The connection has ended during a call; the text says how."""


class SessionEnded(Exception):
    """The server does not know the connection any more, and has not made the call."""


class Connection:
    """A connection to a server, from `open` to `close`.

    tools: of the server, once it is open.
    """

    def __init__(self, transport: ServerTransport) -> None:
        """
        Args:
            transport: to the server; the connection owns it.
        """
        self.tools: Sequence[Tool] = ()
        self._transport = transport
        self._client: Client | None = None
        self._num_calls = 0
        self._is_retired = False
        self._reason = ""
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[None] = loop.create_future()
        self._closing = asyncio.Event()
        # The package wants one task for the begin and the end of a connection.
        self._owner = loop.create_task(self._hold())

    @property
    def is_alive(self) -> bool:
        """True if calls can be made, as far as is known."""
        return self._client is not None and not self._is_retired and self._transport.is_alive

    @property
    def has_ended(self) -> bool:
        """True if nothing of the connection is left."""
        return self._owner.done()

    @property
    def last_words(self) -> str:
        """What is known about the server's last actions, for messages; may be empty."""
        return self._transport.last_words

    async def open(self, seconds: float) -> None:
        """Wait until the connection is open.

        Args:
            seconds: limit.

        Raises:
            ConnectFailed: it does not open.
        """
        try:
            await asyncio.wait_for(asyncio.shield(self._opened), seconds)
        except TimeoutError:
            problem = f"no answer within {seconds:g} s"
        else:
            if self._client is not None:
                return
            problem = self._reason
        last_words = self._transport.last_words
        await self.close()
        raise ConnectFailed(problem, last_words)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> CallToolResult:
        """Call a tool. A caller that is cancelled cancels the call at the server.

        Args:
            name: of the tool.
            arguments: JSON values.

        Raises:
            ConnectionLost: the connection has ended.
            SessionEnded: another connection is needed.
            MCPError: the server has refused the call.
        """
        client = self._client
        if client is None:
            raise ConnectionLost(self._reason)
        self._num_calls += 1
        try:
            return await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == CONNECTION_CLOSED:
                self.retire()
                raise ConnectionLost(await self._why_lost(str(error))) from error
            if error.code != INVALID_PARAMS and self._transport.has_lost_session:
                self.retire()
                raise SessionEnded from error
            raise
        finally:
            self._num_calls -= 1
            self._close_if_unused()

    def retire(self) -> None:
        """Close the connection once its calls have ended."""
        self._is_retired = True
        self._close_if_unused()

    async def close(self) -> None:
        """Close the connection; calls that are under way fail."""
        self._closing.set()
        if self._client is None:
            self._owner.cancel()
        await asyncio.wait([self._owner], timeout=END_SECONDS)
        if not self._owner.done():
            self._owner.cancel()
            await asyncio.wait([self._owner], timeout=END_SECONDS)

    async def _why_lost(self, otherwise: str) -> str:
        """Wait a moment until the transport has failed or the server has ended, and say why."""
        ending = asyncio.create_task(self._transport.wait_for_end())
        try:
            await asyncio.wait(
                [self._owner, ending],
                timeout=REASON_SECONDS,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            ending.cancel()
        return f"{self._reason or otherwise}{self._transport.last_words}"

    def _close_if_unused(self) -> None:
        if self._is_retired and not self._num_calls:
            self._closing.set()

    async def _hold(self) -> None:
        """Open the connection and hold it."""
        try:
            async with Client(self._transport.open(), cache=None) as client:
                self.tools = await _all_tools(client)
                self._client = client
                self._opened.set_result(None)
                await self._closing.wait()
        except (Exception, BaseExceptionGroup) as error:
            self._reason = _reason_of(error)
        finally:
            self._client = None
            if not self._opened.done():
                self._opened.set_result(None)
            await asyncio.to_thread(self._transport.clean)


async def _all_tools(client: Client) -> list[Tool]:
    """Return the tools of a server, of all pages."""
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            break
    return tools


def _reason_of(error: BaseException) -> str:
    """Describe an error of the package, which wraps the one that matters in groups."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, MCPError):
        return error.message
    return f"{type(error).__name__}: {error}"
