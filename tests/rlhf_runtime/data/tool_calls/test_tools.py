"""The check of names and arguments that all formats share."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlhf_runtime.data.errors import ToolsUnusable
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

from .conversations import schema

UNION = {"anyOf": [{"type": "integer"}, {"type": "null"}]}
POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
    "required": ["x"],
}


def checked(parameter: Any, value: Any) -> ToolCall | MalformedCall:
    """Check a call of a tool with one parameter."""
    return Tools([schema("f", ["p"], p=parameter)]).checked(WrittenCall("f(p)", "f", {"p": value}))


@pytest.mark.parametrize(
    ("parameter", "value", "expected"),
    [
        ({"type": "integer"}, 3, 3),
        ({"type": "integer"}, 3.0, 3),
        ({"type": "integer"}, " -3", -3),
        ({"type": "number"}, 3, 3),
        ({"type": "number"}, "2.5e-1", 0.25),
        ({"type": "number"}, "7", 7),
        ({"type": "string"}, "3", "3"),
        ({"type": "string"}, 3, "3"),
        ({"type": "string"}, 0.5, "0.5"),
        ({"type": "boolean"}, False, False),
        ({"type": "boolean"}, "True", True),
        ({"type": "boolean"}, "false", False),
        ({"type": "null"}, "None", None),
        ({"type": "array", "items": {"type": "integer"}}, '[1, "2"]', [1, 2]),
        ({"type": "array"}, (1, "2"), [1, "2"]),
        ({"type": "object"}, '{"a": [1]}', {"a": [1]}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": "1"}, {"a": 1}),
        (POINT, {"x": "1"}, {"x": 1}),
        (UNION, "5", 5),
        (UNION, "null", None),
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, None, None),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "5", "5"),
        ({"type": "integer", "nullable": True}, None, None),
        ({"type": "integer", "nullable": True}, "null", None),
        ({"type": "string", "nullable": True}, "null", "null"),
        ({"anyOf": [{"type": "integer"}, {"type": "array"}], "nullable": True}, None, None),
        ({"type": "string", "enum": ["a"], "nullable": True}, None, None),
        ({"enum": ["a", 1]}, 1, 1),
        ({"const": "a"}, "a", "a"),
        ({}, {"anything": [None]}, {"anything": [None]}),
    ],
)
def test_values_are_converted_where_nothing_is_lost(
    parameter: Any, value: Any, expected: Any
) -> None:
    call = checked(parameter, value)
    assert call == ToolCall("f", {"p": expected})
    assert isinstance(call, ToolCall) and type(call.arguments["p"]) is type(expected)


@pytest.mark.parametrize(
    ("parameter", "value", "problem"),
    [
        ({"type": "integer"}, 3.5, 'f: argument "p" must be integer, got 3.5'),
        ({"type": "integer"}, "3.0x", 'must be integer, got "3.0x"'),
        ({"type": "integer"}, True, "must be integer, got true"),
        ({"type": "integer"}, "9" * 5000, "must be integer"),
        ({"type": "number"}, "nan", "must be number"),
        ({"type": "number"}, "1e999", "must be number"),
        ({"type": "boolean"}, 1, "must be boolean, got 1"),
        ({"type": "string"}, ["a"], "must be string"),
        ({"type": "string"}, None, "must be string, got null"),
        ({"type": "array"}, "[1", "no valid json"),
        ({"type": "array"}, "{}", "must be array"),
        ({"type": "array", "items": {"type": "integer"}}, [1, "x"], r'"p\[1\]" must be integer'),
        (POINT, {"y": 1}, '"p.x" is missing'),
        (POINT, {"x": 1, "z": 1}, '"p.z" is not known; the arguments are: x, y'),
        (UNION, "x", 'argument "p" must be integer or null, got "x"'),
        ({"type": "integer", "nullable": True}, "x", "must be integer or null"),
        ({"type": "integer", "nullable": False}, None, "must be integer, got null"),
        ({"enum": ["a", 1]}, True, r'must be one of \["a", 1\], got true'),
        ({}, float("inf"), "inf is no json value"),
        ({}, "\ud800", "half of a surrogate pair"),
        ({}, {"\udc00": 1}, "half of a surrogate pair"),
    ],
)
def test_a_value_that_does_not_fit_is_malformed(parameter: Any, value: Any, problem: str) -> None:
    call = checked(parameter, value)
    assert isinstance(call, MalformedCall) and re.search(problem, call.problem), call
    assert (call.name, call.text) == ("f", "f(p)")


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("g", {}, 'no tool is called "g"; the tools are: f'),
        (None, {}, "no tool is called null"),
        ({}, {}, "no tool is called {}"),
        ("f", {}, 'f: argument "p" is missing'),
        ("f", {"p": 1, "q": 2}, 'f: argument "q" is not known; the arguments are: p'),
        ("f", [1], r"f: the arguments must be an object, got \[1\]"),
        ("f", "[1]", r"f: the arguments must be an object"),
        ("f", '{"p": 1} x', "text behind the json object"),
        ("f", "", "no valid json"),
    ],
)
def test_a_call_that_does_not_fit_is_malformed(name: Any, arguments: Any, problem: str) -> None:
    tools = Tools([schema("f", ["p"], p={})])
    call = tools.checked(WrittenCall("text", name, arguments, "id"))
    assert isinstance(call, MalformedCall) and re.search(problem, call.problem), call
    assert call.id == "id"


def test_a_tool_may_take_arguments_of_any_name() -> None:
    tool = schema("f")
    tool["function"]["parameters"]["additionalProperties"] = {"type": "integer"}
    call = Tools([tool]).checked(WrittenCall("", "f", {"x": "1"}))
    assert call == ToolCall("f", {"x": 1})


@pytest.mark.parametrize(
    ("schemas", "problem"),
    [
        ([], "no tools: got an empty list"),
        ([schema("f"), schema("f")], "two tools have one name: got f twice"),
        ([{"name": "f"}], "a tool's schema has another form"),
        ([{"type": "function", "function": {"name": ""}}], "another form"),
        ([{"function": {"name": "f", "parameters": {"type": "array"}}}], "another form"),
        ([{"function": {"name": "f", "parameters": {"properties": []}}}], "another form"),
    ],
)
def test_schemas_that_no_model_can_call_are_refused(schemas: Any, problem: str) -> None:
    with pytest.raises(ToolsUnusable, match=problem):
        Tools(schemas)
