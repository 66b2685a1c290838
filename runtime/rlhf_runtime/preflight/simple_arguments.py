"""Simple arguments of a tool, made from its schema. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_runtime.environments.tool_schema import ToolSchema

_VALUES: Mapping[str, Any] = {
    "string": "a",
    "integer": 1,
    "number": 1.0,
    "boolean": True,
    "null": None,
}


def simple_arguments(tool: ToolSchema) -> dict[str, Any]:
    """Return a value for every argument that a tool needs.

    Args:
        tool: its schema.
    """
    return _required(tool["function"].get("parameters", {}))


def _required(schema: Mapping[str, Any]) -> dict[str, Any]:
    properties = schema.get("properties", {})
    return {name: _value(properties.get(name, {})) for name in schema.get("required", ())}


def _value(schema: Mapping[str, Any]) -> Any:
    if "const" in schema:
        return schema["const"]
    if choices := schema.get("enum"):
        return choices[0]
    if alternatives := schema.get("anyOf") or schema.get("oneOf"):
        return _value(alternatives[0])
    kind = schema.get("type", "string")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "array":
        return [_value(schema["items"])] if "items" in schema else []
    if kind == "object":
        return _required(schema)
    value = _VALUES.get(kind, "a")
    # Schemas of servers have limits, too.
    if kind in ("integer", "number"):
        value = max(value, schema.get("minimum", value))
        return min(value, schema.get("maximum", value))
    return value
