"""Tools of a server as schemas for prompts, and how they have changed. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from mcp import types

from rlhf_runtime.environments.tool_schema import ToolSchema


def tool_schemas(tools: Sequence[types.Tool]) -> dict[str, ToolSchema]:
    """Return the schemas of tools in OpenAI's form, by name, in the order of names.

    Servers may list tools in any order; prompts must not depend on it.
    """
    return {tool.name: _schema_of(tool) for tool in sorted(tools, key=lambda tool: tool.name)}


def _schema_of(tool: types.Tool) -> ToolSchema:
    parameters = {"type": "object", "properties": {}, **tool.input_schema}
    description = tool.description or tool.title or ""
    content = {"name": tool.name, "description": description, "parameters": parameters}
    return {"type": "function", "function": content}


def schema_changes(
    before: Mapping[str, ToolSchema], now: Mapping[str, ToolSchema]
) -> Iterator[str]:
    """Yield how tools have changed, one text each. New tools are no change: no prompt has them."""
    for name, schema in before.items():
        if name not in now:
            yield f"no tool {name} any more"
        elif _canonical(schema) != _canonical(now[name]):
            yield f"another schema of the tool {name}"


def _canonical(schema: ToolSchema) -> str:
    # Not ==: for Python True is 1.
    return json.dumps(schema, sort_keys=True)
