"""A server as a source of tools."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from itertools import count

from mcp import MCPError
from mcp.types import INVALID_PARAMS, CallToolResult

from rlhf_runtime.environments.errors import (
    InvalidEnvironment,
    ServerUnreachable,
    ServerUnusable,
    ToolsChanged,
)
from rlhf_runtime.environments.results import EpisodeKey
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import ToolSchema
from rlhf_runtime.environments.tool_servers.connection import (
    ConnectFailed,
    Connection,
    ConnectionLost,
    SessionEnded,
)
from rlhf_runtime.environments.tool_servers.results import result_text
from rlhf_runtime.environments.tool_servers.schemas import schema_changes, tool_schemas
from rlhf_runtime.environments.tool_servers.settings import ServerSettings
from rlhf_runtime.environments.tool_servers.transports import ServerTransport, make_transport
from rlhf_runtime.environments.tool_source import SourceFailed, ToolRaised
from rlhf_runtime.secret_headers import hide, secret_values

LOGGER = logging.getLogger(__name__)

# Limit of starting a server and reading its tools.
START_SECONDS = 30.0
# Time between the begins of two connections: a server that ends at once must not be started in a
# loop.
PAUSE_SECONDS = 1.0
# Codes of errors that JSON-RPC defines or reserves; others are the server's own.
_RESERVED_CODES = range(-32768, -31999)


class ServerTools:
    """The tools of a server; a `ToolSource`."""

    def __init__(
        self,
        settings: ServerSettings,
        start_seconds: float = START_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
        make: Callable[[ServerSettings, int], ServerTransport] = make_transport,
    ) -> None:
        """
        Args:
            settings: of the server.
            start_seconds: limit of connecting.
            pause_seconds: smallest time between the begins of two connections.
            make: returns the transport of a connection by its number.
        """
        self.title = f"the server {settings.name}"
        self.schemas: Mapping[str, ToolSchema] = {}
        self._settings = settings
        header = settings.header
        self._secrets = secret_values([] if header is None else [header.variable])
        self._start_seconds, self._pause_seconds = start_seconds, pause_seconds
        self._make = make
        self._numbers = count()
        self._connection: Connection | None = None
        # Those that were lost, and end once their last call has.
        self._all: set[Connection] = set()
        self._connecting: asyncio.Task[Connection] | None = None
        self._next_begin = 0.0

    @property
    def is_connected(self) -> bool:
        """True if calls can be made without a new connection, as far as is known."""
        return self._connection is not None and self._connection.is_alive

    async def start(self) -> None:
        """Connect, and read the tools.

        Raises:
            ServerUnusable: the server cannot be used on this machine.
            InvalidEnvironment: it has not the tools that the manifest names.
        """
        # The package logs every request.
        for name in ("httpx2", "mcp"):
            logging.getLogger(name).setLevel(logging.WARNING)
        self._connection = await self._connect()
        self.schemas = self._chosen(tool_schemas(self._connection.tools))

    async def call(self, key: EpisodeKey, call: ToolCall) -> str:
        """Call a tool; see `ToolSource`."""
        # A server may repeat its credential, which neither the model nor a journal may see.
        try:
            return hide(await self._answer(call), self._secrets)
        except (ToolRaised, SourceFailed) as error:
            raise type(error)(hide(str(error), self._secrets)) from error

    async def _answer(self, call: ToolCall) -> str:
        try:
            result = await self._ask(call)
        except ConnectionLost as lost:
            raise SourceFailed(f"the connection to {self.title} was lost: {lost}") from lost
        except ServerUnusable as gone:
            raise SourceFailed(f"the connection was lost before, and {gone}") from gone
        except MCPError as error:
            # Arguments that do not fit, and errors of the tool, are the model's; others are not.
            if error.code == INVALID_PARAMS or error.code not in _RESERVED_CODES:
                raise ToolRaised(error.message) from error
            last_words = "" if self._connection is None else self._connection.last_words
            raise SourceFailed(
                f"{self.title} answered with an error: {error.message} (code {error.code})"
                f"{last_words}"
            ) from error
        text = result_text(result)
        if result.is_error:
            raise ToolRaised(text or "the tool has failed")
        return text

    async def close(self) -> None:
        """End the connection, and the server if it is a program."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.wait([self._connecting])
        await asyncio.gather(*(connection.close() for connection in self._all))
        self._all.clear()

    async def _ask(self, call: ToolCall) -> CallToolResult:
        """Make a call; once more where the server has only forgotten the connection."""
        connection = await self._live_connection()
        try:
            return await connection.call(call.name, call.arguments)
        except SessionEnded:
            connection = await self._live_connection()
        try:
            return await connection.call(call.name, call.arguments)
        except SessionEnded:
            raise ConnectionLost("it ended two sessions in a row") from None

    async def _live_connection(self) -> Connection:
        """Return the connection, or a new one if it was lost; callers share the attempt."""
        if self._connection is not None and self._connection.is_alive:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._connecting = asyncio.create_task(self._connect_again())
            # A caller that gives up leaves the attempt to others, perhaps to nobody.
            self._connecting.add_done_callback(_mark_retrieved)
        # Limits of calls end waiting, not the attempt: a server may take longer to start.
        return await asyncio.shield(self._connecting)

    async def _connect_again(self) -> Connection:
        """Connect to a server that was lost.

        Raises:
            ServerUnusable: it does not answer.
            ToolsChanged: its tools are not those of the prompts.
        """
        if self._connection is not None:
            self._connection.retire()
        await asyncio.sleep(self._next_begin - asyncio.get_running_loop().time())
        LOGGER.warning("%s is connected again", self.title)
        connection = await self._connect()
        if changes := list(schema_changes(self.schemas, tool_schemas(connection.tools))):
            connection.retire()
            raise ToolsChanged(
                f"{self.title} has changed while the job runs: got {changes[0]}, allowed the tools "
                "that the prompts describe; start the server as it was, or run the job again to "
                "make prompts with the new ones"
            ).at(*self._settings.section)
        self._connection = connection
        return connection

    async def _connect(self) -> Connection:
        """Open a connection.

        Raises:
            ServerUnusable: it cannot be opened.
        """
        self._next_begin = asyncio.get_running_loop().time() + self._pause_seconds
        connection = Connection(self._make(self._settings, next(self._numbers)))
        self._all = {one for one in self._all if not one.has_ended} | {connection}
        try:
            await connection.open(self._start_seconds)
        except ConnectFailed as error:
            is_command = bool(self._settings.command)
            do = "correct its command" if is_command else "start it, or correct its url and header"
            text = (
                f"{self.title} does not answer as a server of tools: got {error}, allowed the list "
                f"of its tools within {self._start_seconds:g} s; {do}{error.last_words}"
            )
            raise ServerUnreachable(hide(text, self._secrets)).at(
                *self._settings.section, "command" if is_command else "url"
            ) from None
        return connection

    def _chosen(self, schemas: Mapping[str, ToolSchema]) -> Mapping[str, ToolSchema]:
        """Return the schemas of the tools that the model may call.

        Raises:
            InvalidEnvironment: there is none, or one is missing.
        """
        names = self._settings.tools
        if not schemas:
            raise InvalidEnvironment(
                f"{self.title} has no tools: got an empty list, allowed at least one tool; give it "
                "one, or remove it"
            ).at(*self._settings.section)
        if unknown := [name for name in names if name not in schemas]:
            raise InvalidEnvironment(
                f"{self.title} has no such tool: got {unknown[0]}, allowed {', '.join(schemas)}; "
                "correct the name"
            ).at(*self._settings.section, "tools")
        return {name: schema for name, schema in schemas.items() if not names or name in names}


def _mark_retrieved(task: asyncio.Task[Connection]) -> None:
    if not task.cancelled():
        task.exception()
