"""Results of servers become texts, and their tools schemas."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import types

from rlhf_runtime.environments.tool_servers.results import result_text
from rlhf_runtime.environments.tool_servers.schemas import schema_changes, tool_schemas

IMAGE = {"type": "image", "data": "", "mimeType": "image/png"}
AUDIO = {"type": "audio", "data": "", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a", "name": "a"}
FILE = {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}}
BYTES = {"type": "resource", "resource": {"uri": "file:///c", "blob": ""}}


def text(words: str) -> dict[str, Any]:
    return {"type": "text", "text": words}


@pytest.mark.parametrize(
    ("content", "structured", "answer"),
    [
        ([text("a"), text("b")], None, "a\nb"),
        ([], None, ""),
        ([text("a"), IMAGE], {"b": 1}, "a\n[image]"),
        ([], {"b": ["é"]}, '{"b": ["é"]}'),
        ([IMAGE], {"b": 1}, '{"b": 1}\n[image]'),
        (
            [AUDIO, LINK, FILE, BYTES],
            None,
            "[audio]\n[link to file:///a]\ninside\n[file file:///c]",
        ),
        ([text("")], {"b": 1}, ""),
    ],
)
def test_a_result_is_a_text(content: list[Any], structured: Any, answer: str) -> None:
    fields = {"content": content, "structuredContent": structured}
    assert result_text(types.CallToolResult.model_validate(fields)) == answer


def tool(name: str, **fields: Any) -> types.Tool:
    return types.Tool.model_validate({"name": name, "inputSchema": {"type": "object"}, **fields})


def test_schemas_are_in_the_order_of_names_and_have_parameters() -> None:
    one = tool("b", description="Do.", inputSchema={"type": "object", "properties": {"x": {}}})
    schemas = tool_schemas([one, tool("a", title="A")])
    assert [schema["function"] for schema in schemas.values()] == [
        {"name": "a", "description": "A", "parameters": {"type": "object", "properties": {}}},
        {
            "name": "b",
            "description": "Do.",
            "parameters": {"type": "object", "properties": {"x": {}}},
        },
    ]


def test_changes_of_schemas_name_the_tool() -> None:
    before = tool_schemas([tool("a"), tool("b", description="Do."), tool("c")])
    now = tool_schemas([tool("c"), tool("b", description="Do it."), tool("d")])
    changes = list(schema_changes(before, now))
    assert changes == ["no tool a any more", "another schema of the tool b"]
    assert not list(schema_changes(before, before))
