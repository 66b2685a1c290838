"""Servers of tools for conversations."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from rlhf_api.base import HEADER_PATTERN, IDENTIFIER_PATTERN, Contract, Text
from rlhf_api.exclusive_fields import Alternatives
from rlhf_api.rules import Rule, Violation, violation_if
from rlhf_api.spec.services import HeaderValue, HTTPHeader, Url

VariableName = Annotated[str, Field(pattern=IDENTIFIER_PATTERN, max_length=256)]
MAX_ARGUMENTS = 64
MAX_CHOSEN_TOOLS = 64


class ServerHeader(Contract):
    """A header of every request to a server, whose value no manifest contains."""

    name: Annotated[str, Field(min_length=1, max_length=64, pattern=HEADER_PATTERN)]
    """Its name, such as Authorization."""
    value_from_env: VariableName
    """An environment variable with its value; on a cluster one of spec.env, such as from a Secret.
    Tools do not get it. Spaces and line ends around the value are removed."""
    prefix: HeaderValue = ""
    """Text before the value, such as "Bearer "."""

    validations: ClassVar = HTTPHeader.validations


def _header_of_command(server: ToolServer) -> list[Violation]:
    return violation_if(server.command is not None and server.header is not None)


class ToolServer(Alternatives):
    """A server of tools: exactly one of command, url is set."""

    alternatives: ClassVar = ("command", "url")

    command: Annotated[tuple[Text, ...], Field(min_length=1, max_length=MAX_ARGUMENTS)] | None = (
        None
    )
    """A program and its arguments, such as [python, -m, my_server]. It is started on every node
    that has conversations, and speaks MCP over its standard input and output. It has the variables
    and the network of tools, and a folder of its own; modules of spec.code can be imported."""
    url: Url | None = None
    """Address of a server that runs already, such as http://search:8000/mcp (streamable HTTP)."""
    header: ServerHeader | None = None
    """A header of requests to url, such as a credential. Default: none."""
    tools: Annotated[tuple[Text, ...], Field(max_length=MAX_CHOSEN_TOOLS)] = ()
    """Names of the server's tools that the model may call. Default: all."""

    validations: ClassVar = (
        Rule(
            holds="!has(self.command) || !has(self.header)",
            what="a header for a server that is no address",
            allowed="header with url",
            do="remove it; a command gets the variables that environment.variables names",
            field=".header",
            check=_header_of_command,
        ),
    )
