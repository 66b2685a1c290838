"""Transports to servers: programs that are started here, and addresses."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import httpx2
from mcp import StdioServerParameters
from mcp.client import Transport
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client

from rlhf_runtime.child_python import child_command
from rlhf_runtime.environments.errors import ServerUnusable
from rlhf_runtime.environments.isolation import tool_variables
from rlhf_runtime.environments.output_log import LineLimit, Output
from rlhf_runtime.environments.server_handle import FOLDER_PREFIX
from rlhf_runtime.environments.tool_servers.settings import HeaderSettings, ServerSettings
from rlhf_runtime.secret_headers import HeaderUnusable, header_value

LOGGER = logging.getLogger(__name__)

# Limit of connecting, and of sending a request.
SEND_SECONDS = 30.0
# Added to the limit of a call, which the caller keeps: this one ends what nobody waits for.
SPARE_SECONDS = 60.0
# Of requests to servers that keep sessions; these answer with 404 once they have ended one.
SESSION_HEADER = "mcp-session-id"
# Largest event of a server, such as one with an image.
MAX_EVENT_BYTES = 64 << 20
_PROGRAM = (
    "from rlhf_runtime.environments.tool_servers.supervisor import main; "
    "main(*json.loads(sys.argv[2]))"
)


class ServerTransport(Protocol):
    """Access to a server, for one connection."""

    @property
    def is_alive(self) -> bool:
        """False if the server is known to have ended."""

    @property
    def has_lost_session(self) -> bool:
        """True if the server has refused requests because it does not know the connection."""

    def open(self) -> Transport:
        """Connect; the connection ends with the context."""

    async def wait_for_end(self) -> None:
        """Wait until the server is known to have ended."""

    @property
    def last_words(self) -> str:
        """What is known about the server's last actions, for messages; may be empty."""

    def clean(self) -> None:
        """Remove what the server has left, once the connection has ended."""


class CommandTransport:
    """A server that is a program, started for the connection."""

    has_lost_session = False

    def __init__(self, settings: ServerSettings, number: int) -> None:
        """
        Args:
            settings: with a command.
            number: of the connection, for the log.

        Raises:
            ServerUnusable: there is no such program.
        """
        self._name = settings.name
        self._number = number
        variables = tool_variables(os.environ, settings.variables, settings.allow_network)
        # `python` is the interpreter of the job, also where its environment is not active.
        path = os.pathsep.join([str(Path(sys.executable).parent), variables.get("PATH", "")])
        program = settings.command[0]
        if shutil.which(program, path=path) is None:
            raise ServerUnusable(
                f"the server {settings.name} cannot be started: got no program {program} on this "
                "machine, allowed one on PATH, or an absolute path; install it, or correct its name"
            ).at(*settings.section, "command")
        self._folder = Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-"))
        own = {"HOME": str(self._folder), "TMPDIR": str(self._folder)}
        arguments = [os.getpid(), settings.allow_network, settings.command, settings.python_path]
        words = child_command(_PROGRAM, json.dumps(arguments))
        self._parameters = StdioServerParameters(
            command=words[0],
            args=words[1:],
            env={**own, **variables, "PATH": path},
            cwd=self._folder,
        )
        self._output: Output | None = None

    @property
    def is_alive(self) -> bool:
        """False once nobody can write to the program's output: its supervisor has ended."""
        return self._output is None or not self._output.ended.is_set()

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Start the program."""
        readable, writable = os.pipe()
        self._output = Output(readable, self._number, LineLimit(LOGGER, f"tools of {self._name}"))
        errors = os.fdopen(writable, "w")
        try:
            async with stdio_client(self._parameters, errors) as streams:
                errors.close()  # its last writer is the program now
                yield streams
        finally:
            errors.close()
            self._output.last_lines()  # reads them
            self._output.close()

    async def wait_for_end(self) -> None:
        """Wait until the supervisor has ended."""
        assert self._output is not None, "open it first"
        await self._output.ended.wait()

    @property
    def last_words(self) -> str:
        """The last lines of the program; the supervisor adds the exit code."""
        return "" if self._output is None else self._output.last_lines()

    def clean(self) -> None:
        """Remove the program's folder."""
        shutil.rmtree(self._folder, ignore_errors=True)


class AddressTransport:
    """A server that others have started."""

    is_alive = True

    def __init__(self, settings: ServerSettings) -> None:
        """
        Args:
            settings: with a URL.

        Raises:
            ServerUnusable: its header has no value here.
        """
        self._url = settings.url
        self._headers = {} if settings.header is None else _header(settings, settings.header)
        seconds = settings.call_seconds + SPARE_SECONDS
        self._timeout = httpx2.Timeout(SEND_SECONDS, read=seconds)
        self._status = ""
        self.has_lost_session = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Any]:
        """Make the client; the first request connects."""
        hooks = {"response": [self._note]}
        async with (
            httpx2.AsyncClient(
                headers=self._headers, timeout=self._timeout, event_hooks=hooks
            ) as client,
            streamable_http_client(
                self._url, http_client=client, max_sse_event_size=MAX_EVENT_BYTES
            ) as streams,
        ):
            yield streams

    async def _note(self, response: httpx2.Response) -> None:
        # The package shows no status in its errors.
        is_refusal = response.status_code >= 400
        self._status = f"; its last answer had status {response.status_code}" * is_refusal
        if response.status_code == 404 and SESSION_HEADER in response.request.headers:
            self.has_lost_session = True

    async def wait_for_end(self) -> None:
        """Wait forever: only requests show the end of a server."""
        await asyncio.Event().wait()

    @property
    def last_words(self) -> str:
        """The status of the last answer, if it was a refusal."""
        return self._status

    def clean(self) -> None:
        """Nothing is left here."""


def make_transport(settings: ServerSettings, number: int) -> ServerTransport:
    """Return the transport of a new connection.

    Args:
        settings: of the server.
        number: of the connection.

    Raises:
        ServerUnusable: it cannot work on this machine.
    """
    if settings.command:
        return CommandTransport(settings, number)
    return AddressTransport(settings)


def _header(settings: ServerSettings, header: HeaderSettings) -> dict[str, str]:
    """Return the header of requests.

    Raises:
        ServerUnusable: its variable is not set, or has a value that cannot be a header's.
    """
    try:
        value = header_value(header.name, header.variable, f"the server {settings.name}")
    except HeaderUnusable as error:
        raise ServerUnusable(str(error)).at(*settings.section, "header") from None
    return {header.name: f"{header.prefix}{value}"}
