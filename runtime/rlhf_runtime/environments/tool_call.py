"""Calls of tools, as a model has written them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_runtime.environments.frames import is_deep

# Far below what messages allow, and above what tools need.
MAX_DEPTH = 64


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


def check_calls(calls: Sequence[ToolCall | MalformedCall]) -> list[ToolCall | MalformedCall]:
    """Return the calls of a turn; those whose arguments no message can carry as malformed ones."""
    problem = f"the arguments are nested deeper than {MAX_DEPTH} levels"
    return [
        MalformedCall("", problem, call.name, call.id)
        if isinstance(call, ToolCall) and is_deep(call.arguments, MAX_DEPTH)
        else call
        for call in calls
    ]
