"""Checks of calls before they reach a tool. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.environments.frames import is_deep
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

# Far below what messages allow, and above what tools need.
MAX_DEPTH = 64


def check_calls(calls: Sequence[ToolCall | MalformedCall]) -> list[ToolCall | MalformedCall]:
    """Return the calls; those that cannot be made as malformed ones."""
    problem = f"the arguments are nested deeper than {MAX_DEPTH} levels"
    return [
        MalformedCall("", problem, call.name, call.id)
        if isinstance(call, ToolCall) and is_deep(call.arguments, MAX_DEPTH)
        else call
        for call in calls
    ]
