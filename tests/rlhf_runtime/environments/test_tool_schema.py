"""Schemas of tools, and arguments converted to hints."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Literal, Optional

import pytest

from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall
from rlhf_runtime.environments.tool_call import ToolCall
from rlhf_runtime.environments.tool_schema import BadArguments, BadTool, Tool, make_tool


class Side(Enum):
    LEFT = "left"
    RIGHT = "right"


class Odd(Enum):
    PAIR = (1, 2)


def tool_of(function: Callable[..., Any]) -> Tool:
    name = function.__name__
    return make_tool(function, name, f"the tool {name}", is_method=False)


def search(
    query: str,
    limit: int = 10,
    weights: dict[str, list[float]] | None = None,
    side: Side = Side.LEFT,
) -> str:
    """Search texts.

    Finds the best ones.

    Args:
        query: Words, such as: a b
            and c.
        limit (int, optional): Most results.
        side: Where to begin.

    Returns:
        Texts: one per line.
    """
    return f"{query} {limit} {weights} {side}"


def test_a_schema_has_all_that_hints_and_docstring_say() -> None:
    assert tool_of(search).schema == {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search texts.\n\nFinds the best ones.",
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string", "description": "Words, such as: a b and c."},
                    "limit": {"type": "integer", "description": "Most results."},
                    "weights": {
                        "type": "object",
                        "additionalProperties": {"type": "array", "items": {"type": "number"}},
                        "nullable": True,
                    },
                    "side": {
                        "type": "string",
                        "enum": ["left", "right"],
                        "description": "Where to begin.",
                    },
                },
                "required": ["query"],
            },
        },
    }


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (int, {"type": "integer"}),
        (float, {"type": "number"}),
        (bool, {"type": "boolean"}),
        (list, {"type": "array"}),
        (dict, {"type": "object"}),
        (Any, {}),
        (
            list[list[int]],
            {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        ),
        (Optional[int], {"type": "integer", "nullable": True}),  # noqa: UP045
        (int | str, {"type": ["integer", "string"]}),
        (
            int | list[str] | None,
            {
                "anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "string"}}],
                "nullable": True,
            },
        ),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Literal[1, "b"], {"enum": [1, "b"]}),
    ],
)
def test_each_type_has_its_schema(hint: Any, schema: dict[str, Any]) -> None:
    tool = tool_of(taking(hint))
    assert tool.schema["function"]["parameters"]["properties"] == {"a": schema}


def taking(hint: Any) -> Callable[..., Any]:
    def function(a: Any) -> None:
        """Take something."""

    function.__annotations__["a"] = hint
    return function


@pytest.mark.parametrize(
    ("hint", "value", "converted"),
    [
        (float, 3, 3.0),
        (int, 3.0, 3),
        (int, "3", 3),
        (float, "2.5", 2.5),
        (bool, "true", True),
        (list[float], "[1, 2]", [1.0, 2.0]),
        (dict[str, int], {"a": 1.0}, {"a": 1}),
        (str, "3", "3"),
        (int | str, "3", "3"),
        (int | None, None, None),
        (int | None, "null", None),
        (Side, "left", Side.LEFT),
        (Literal[1, "b"], 1, 1),
    ],
)
def test_arguments_are_converted_where_this_loses_nothing(
    hint: Any, value: Any, converted: Any
) -> None:
    result = tool_of(taking(hint)).convert({"a": value})["a"]
    assert result == converted and type(result) is type(converted)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int, 3.5),
        (int, True),
        (int, "x"),
        (int, None),
        (float, 2**60 + 1),
        (float, 10**400),
        (float, True),
        (str, 3),
        (bool, 1),
        (list[int], ["a"]),
        (list[int], "3"),
        (dict[str, int], [1]),
        (Side, "up"),
        (Literal[1], True),
    ],
)
def test_other_arguments_are_refused_in_words_for_the_model(hint: Any, value: Any) -> None:
    with pytest.raises(BadArguments, match=r"argument a of function: got .*, allowed "):
        tool_of(taking(hint)).convert({"a": value})


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (int | None, None),
        (list[int] | None, None),
        (Side | None, None),
        (int | list[str] | None, None),
        (int | list[str] | None, ["a"]),
        (list[int | None], [1, None]),
        (dict[str, float | None], {"a": None}),
        (Literal[1, "b"], "b"),
        (bool | int, True),
        (Any, {"a": [None]}),
    ],
)
def test_a_value_that_a_hint_allows_reaches_the_tool(hint: Any, value: Any) -> None:
    tool = tool_of(taking(hint))
    call = Tools([tool.schema]).checked(WrittenCall("", "function", {"a": value}))
    assert call == ToolCall("function", {"a": value})
    assert tool.convert(call.arguments) == {"a": value}


def test_missing_and_unknown_arguments_are_named() -> None:
    tool = tool_of(search)
    assert tool.convert({"query": "x"}) == {"query": "x"}
    with pytest.raises(BadArguments, match="search needs the argument query"):
        tool.convert({"limit": 1})
    with pytest.raises(BadArguments, match="search has no argument top; allowed: query, limit"):
        tool.convert({"query": "x", "top": 1})


def without_hint(a) -> str:  # type: ignore[no-untyped-def]
    """Take something."""
    return str(a)


def without_docstring(a: int) -> str:
    return str(a)


def only_arguments(a: int) -> str:
    """
    Args:
        a: something
    """
    return str(a)


def any_number(*values: int) -> str:
    """Take anything."""
    return str(values)


def any_names(**values: int) -> str:
    """Take anything."""
    return str(values)


def positional(a: int, /) -> str:
    """Take something."""
    return str(a)


def misspelt(number: int) -> str:
    """Take something.

    Args:
        nummer: of something.
    """
    return str(number)


def unreadable(a: Missing) -> str:  # type: ignore[name-defined]  # noqa: F821
    """Take something."""
    return str(a)


async def stream(a: int) -> Any:
    """Give something."""
    yield a


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (without_hint, "argument a of the tool without_hint has no type hint: .*add one"),
        (without_docstring, "the tool without_docstring has no description: .*write what"),
        (only_arguments, "the tool only_arguments has no description"),
        (any_number, "the tool any_number takes any arguments: .*name each one"),
        (any_names, "the tool any_names takes any arguments"),
        (positional, "argument a of the tool positional has no name .*remove the /"),
        (misspelt, "misspelt describes an argument .*got nummer, allowed number"),
        (unreadable, "hints of the tool unreadable cannot be read: got NameError"),
        (stream, "the tool stream cannot be a tool: got an async generator"),
        (taking(tuple[int, int]), "argument a .* without a JSON schema: got tuple.*use one"),
        (taking(dict[int, str]), "without a JSON schema: got dict"),
        (taking(Odd), "without a JSON schema: got Odd"),
        (taking({1}), "without a JSON schema"),
        (taking(bytes), "without a JSON schema: got bytes"),
    ],
)
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(
    function: Callable[..., Any], problem: str
) -> None:
    with pytest.raises(BadTool, match=problem):
        tool_of(function)


def described(
    name: str, count: int, ratio: float, names: list[str], table: dict[str, int], end: bool = False
) -> str:
    """Do something with all of these.

    Args:
        name: A name.
        count: A count.
        ratio: A ratio.
        names: Several
            names.
        table: A table.
        end: True at the end.
    """
    return f"{name} {count} {ratio} {names} {table} {end}"


def choosing(side: Literal["left", "right"], limit: int | None = None) -> str:
    """Choose.

    Args:
        side: A side.
        limit: A limit.
    """
    return f"{side} {limit}"


@pytest.mark.parametrize("function", [described, choosing])
def test_schemas_equal_those_that_chat_templates_are_used_to(function: Callable[..., Any]) -> None:
    from transformers.utils import get_json_schema

    expected = get_json_schema(function)
    expected["function"].pop("return", None)
    assert tool_of(function).schema == expected
