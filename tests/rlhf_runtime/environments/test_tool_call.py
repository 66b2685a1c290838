"""Calls that no tool can get."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.environments.frames import is_deep
from rlhf_runtime.environments.tool_call import MAX_DEPTH, MalformedCall, ToolCall, check_calls


def nested(levels: int) -> Any:
    value: Any = 1
    for level in range(levels):
        value = [value] if level % 2 else {"a": value}
    return value


def test_arguments_that_are_nested_too_deep_make_a_call_malformed() -> None:
    flat, deep = ToolCall("a", {"x": nested(3)}), ToolCall("a", {"x": nested(100_000)}, "7")
    malformed = MalformedCall("{", "no JSON")
    checked = check_calls([flat, deep, malformed])
    assert checked[0] is flat and checked[2] is malformed
    assert checked[1] == MalformedCall(
        "", f"the arguments are nested deeper than {MAX_DEPTH} levels", "a", "7"
    )


@given(st.integers(0, 20), st.integers(1, 20))
def test_the_depth_is_that_of_the_deepest_value(levels: int, limit: int) -> None:
    assert is_deep({"flat": [1], "deep": nested(levels)}, limit) is (max(levels, 1) + 1 > limit)
