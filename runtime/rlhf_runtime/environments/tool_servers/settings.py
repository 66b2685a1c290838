"""Settings of servers of tools. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from rlhf_api.problems import FieldPath


@dataclass(frozen=True)
class HeaderSettings:
    """A header of requests, whose value is in an environment variable."""

    name: str
    variable: str
    prefix: str = ""
    """Text before the value."""


@dataclass(frozen=True)
class ServerSettings:
    """A server: a command, or a URL."""

    name: str
    """In the manifest."""
    command: tuple[str, ...] = ()
    """Program and arguments; empty: the server has a URL."""
    url: str = ""
    header: HeaderSettings | None = None
    tools: tuple[str, ...] = ()
    """Names of the tools that the model may call; empty: all."""
    variables: tuple[str, ...] = ()
    """Names of further environment variables that a command gets."""
    allow_network: bool = False
    """True if a command may reach the network."""
    python_path: tuple[str, ...] = ()
    """Folders with the user's modules, for a command."""
    call_seconds: float = field(kw_only=True)
    """Limit of one call, which the caller keeps."""

    @property
    def section(self) -> FieldPath:
        """Its field in the manifest."""
        return ("spec", "rollout", "environment", "servers", self.name)
