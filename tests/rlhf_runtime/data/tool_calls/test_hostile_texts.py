"""Texts of calls that could crash or hang a parser."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.tool_calls.formats import FORMATS, THINKING
from rlhf_runtime.data.tool_calls.tools import Tools
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

from .conversations import TOOLS as SCHEMAS

TOOLS = Tools(SCHEMAS)
HERMES, LLAMA, MISTRAL, GEMMA, DEEPSEEK, HARMONY, QWEN_XML, PYTHON = ToolFormat
WRITERS = {
    HERMES: '<tool_call>{"name": "search", "arguments": {"query": "a", "filters": VALUE}}',
    LLAMA: '{"name": "search", "parameters": {"query": "a", "filters": VALUE}}',
    MISTRAL: '[TOOL_CALLS]search[ARGS]{"query": "a", "filters": VALUE}',
    GEMMA: '<|tool_call>call:search{query:<|"|>a<|"|>,filters:VALUE}<tool_call|>',
    DEEPSEEK: '<｜tool▁call▁begin｜>search<｜tool▁sep｜>{"query": "a", "filters": VALUE}',
    HARMONY: ' to=functions.search<|message|>{"query": "a", "filters": VALUE}',
    QWEN_XML: "<function=search><parameter=query>a</parameter><parameter=filters>VALUE</parameter>"
    "</function>",
    PYTHON: "search('a', filters=VALUE)",
}
"""A call in every format; VALUE stands for a value in JSON, which all of them can read."""
MEGABYTES_10 = 10_000_000
HOSTILE = {
    "duplicate keys": '{"a": 1, "a": 2}',
    "nan": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "too large a number": '{"a": 1e999}',
    "a long number": '{"a": ' + "9" * 100_000 + "}",
    "deep lists": '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}",
    "deep lists that end": '{"a": ' + "[" * 100_000,
    "deep enough for json": '{"a": ' + "[" * 500 + "]" * 500 + "}",
    "deep objects": '{"a":' * 50_000 + "1" + "}" * 50_000,
    "half of a pair": '{"a": "\\ud800"}',
    "half of a pair as a key": '{"\\udfff": 1}',
    "10 MB": '{"a": "' + "x" * MEGABYTES_10 + '"}',
    "many duplicates": "{" + '"a":1,"b":2,' * 100_000 + '"c":1}',
    "many brackets": '{"a": ' + "[]," * 300_000,
    "10 MB without an end": '{"a": "' + "x" * MEGABYTES_10,
    "many signs": '{"a": ' + "-" * 50_000 + "1}",
    "many operators": '{"a": 1' + "+1" * 20_000 + "}",
    "many words": '{"a": ' + "not " * 20_000 + "1}",
    "a null byte": '{"a": \0}',
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("format", WRITERS)
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_value_makes_a_malformed_call(format: ToolFormat, name: str) -> None:
    (call,) = FORMATS[format].parse(WRITERS[format].replace("VALUE", HOSTILE[name]), TOOLS)
    if format is GEMMA and name.startswith("half of a pair"):
        # Nothing is escaped there: the text is a backslash and letters.
        assert "\\" in str(call)
        return
    assert isinstance(call, MalformedCall), call
    assert len(call.text) <= 1000 and len(call.problem) <= 400


@pytest.mark.timeout(60)
@pytest.mark.parametrize("format", WRITERS)
def test_a_value_that_is_not_hostile_makes_a_call(format: ToolFormat) -> None:
    value = {"a": [1, -2.5, True, None]}
    text = {GEMMA: "{a:[1,-2.5,true,null]}"}.get(format, '{"a": [1, -2.5, true, null]}')
    (call,) = FORMATS[format].parse(WRITERS[format].replace("VALUE", text), TOOLS)
    assert call == ToolCall("search", {"query": "a", "filters": value})


OPENINGS = [
    "<tool_call>{",
    "[TOOL_CALLS]{",
    "<|tool_call>call:add{a:",
    "<function=add><parameter=a>",
]
OPENINGS += [
    "<｜tool▁call▁begin｜>add<｜tool▁sep｜>{",
    " to=functions.add<|message|>{",
    "add(\n",
    "{;",
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("opening", OPENINGS)
def test_many_openings_do_not_hang(opening: str) -> None:
    text = opening * 100_000
    for format in FORMATS.values():
        assert len(format.parse(text, TOOLS)) <= 129


_PIECES = [
    "<tool_call>",
    "</tool_call>",
    '{"name": "add"',
    '"arguments": ',
    "{",
    "}",
    "[",
    "]",
    ",",
]
_PIECES += ["<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "add", "search", "(", ")", "="]
_PIECES += [
    "<|tool_call>",
    "<tool_call|>",
    "call:",
    '<|"|>',
    ":",
    "a",
    "1",
    '"',
    "'",
    "\\",
    "\n",
    " ",
]
_PIECES += [
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "```json",
    "```",
    ";",
    ".",
]
_PIECES += [
    " to=functions.",
    "<|message|>",
    "<|end|>",
    "<|start|>",
    "<function=",
    ">",
    "</function>",
]
_PIECES += ["<parameter=", "</parameter>", "<think>", "</think>", "\ud800", "\0", "null", "- ", "*"]
_PIECES += ["<start_function_call>", "<escape>", "lambda", "f'", "b'", "if ", "for ", "await "]


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(_PIECES), max_size=25).map("".join))
def test_no_text_crashes_a_parser(text: str) -> None:
    for format in FORMATS.values():
        for call in format.parse(text, TOOLS):
            assert isinstance(call, ToolCall | MalformedCall)
            assert isinstance(call, ToolCall) or call.problem


@pytest.mark.parametrize("opened", ["", *(opening for opening, _ in THINKING)])
def test_a_turn_without_tokens_has_no_calls(opened: str) -> None:
    """So it gets no reward of its own, which would stand on no sampled token."""
    assert not any(format.parse(opened, TOOLS) for format in FORMATS.values())
