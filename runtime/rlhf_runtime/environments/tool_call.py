"""Calls of tools, as a model has written them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call whose name and arguments fit the tool's schema.

    id: as the model wrote it, if its format has one; else empty.
    """

    name: str
    arguments: Mapping[str, Any]
    """JSON values by the names of the tool's parameters."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class MalformedCall:
    """A call that cannot be made."""

    text: str
    """All that the model wrote for it; the begin of a long text."""
    problem: str
    """The reason in plain words; the model gets it as the answer."""
    name: str = ""
    """The tool's name, if it could be read."""
    id: str = ""
    """The id that the model wrote, if it could be read."""
