"""Parsers of tool calls: what is a call, what is malformed, what is prose."""

from __future__ import annotations

import re

import pytest

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.tool_calls.formats import FORMATS, MAX_CALLS
from rlhf_runtime.data.tool_calls.tools import Tools
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

from .conversations import schema

NUMBER = {"type": "number"}
TOOLS = Tools(
    [
        schema("add", ["a", "b"], a=NUMBER, b=NUMBER),
        schema("echo", text={"type": "string"}, options={"type": "object"}),
    ]
)
ADD = ToolCall("add", {"a": 1, "b": 2})
ECHO = ToolCall("echo", {})
HERMES, LLAMA, MISTRAL, GEMMA, DEEPSEEK, HARMONY, QWEN_XML, PYTHON = ToolFormat
DS_CALL, DS_SEP, DS_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
OBJECT = '{"name": "add", "arguments": {"a": 1, "b": 2}}'
PARAMETERS = OBJECT.replace("arguments", "parameters")


def parse(format: ToolFormat, text: str) -> list[ToolCall | MalformedCall]:
    return FORMATS[format].parse(text, TOOLS)


@pytest.mark.parametrize(
    ("format", "text", "calls"),
    [
        (HERMES, f"<tool_call>{OBJECT}</tool_call>", [ADD]),
        (HERMES, f"Let me see.\n<tool_call>\n{OBJECT}\n</tool_call>\n", [ADD]),
        (HERMES, f"<tool_call>\n{OBJECT}\n", [ADD]),
        (
            HERMES,
            f'<tool_call>{OBJECT}</tool_call><tool_call>{{"name": "echo"}}</tool_call>',
            [ADD, ECHO],
        ),
        (
            HERMES,
            '<tool_call>{"name": "echo", "arguments": {"text": "</tool_call>"}}</tool_call>',
            [ToolCall("echo", {"text": "</tool_call>"})],
        ),
        (
            HERMES,
            '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}</tool_call>',
            [ADD],
        ),
        (LLAMA, PARAMETERS, [ADD]),
        (LLAMA, f" <|python_tag|>{PARAMETERS}", [ADD]),
        (LLAMA, f'{PARAMETERS}; {{"name": "echo", "parameters": {{}}}}', [ADD, ECHO]),
        (LLAMA, f"{PARAMETERS}\n{PARAMETERS}", [ADD, ADD]),
        (LLAMA, PARAMETERS.replace("{", '{"type": "function", ', 1), [ADD]),
        (MISTRAL, f"[TOOL_CALLS] [{OBJECT}]", [ADD]),
        (MISTRAL, f"I add.[TOOL_CALLS]{OBJECT}", [ADD]),
        (
            MISTRAL,
            f'[TOOL_CALLS][{OBJECT[:-1]}, "id": "Ab3456789"}}, {{"name": "echo"}}]',
            [ToolCall("add", {"a": 1, "b": 2}, "Ab3456789"), ECHO],
        ),
        (MISTRAL, '[TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}', [ADD]),
        (MISTRAL, '[TOOL_CALLS]add{"a": 1, "b": 2}', [ADD]),
        (
            MISTRAL,
            '[TOOL_CALLS]add[CALL_ID]x1[ARGS]{"a": 1, "b": 2}[TOOL_CALLS]echo[ARGS]{}',
            [ToolCall("add", {"a": 1, "b": 2}, "x1"), ECHO],
        ),
        (GEMMA, "<|tool_call>call:add{a:1,b:2}<tool_call|>", [ADD]),
        (GEMMA, "Yes.<|tool_call>call:add{b: 2, a: 1}", [ADD]),
        (
            GEMMA,
            '<|tool_call>call:echo{text:<|"|>a, {b}: "c"<|"|>,options:{x:[1,true,null],'
            '<|"|>y z<|"|>:-2.5e3}}<tool_call|><|tool_call>call:echo{}<tool_call|>',
            [
                ToolCall(
                    "echo",
                    {"text": 'a, {b}: "c"', "options": {"x": [1, True, None], "y z": -2500.0}},
                ),
                ECHO,
            ],
        ),
        (
            GEMMA,
            "<start_function_call>call:echo{text:<escape>hi<escape>}<end_function_call>",
            [ToolCall("echo", {"text": "hi"})],
        ),
        (
            DEEPSEEK,
            f"<｜tool▁calls▁begin｜>{DS_CALL}function{DS_SEP}add\n```json\n"
            f'{{"a": 1, "b": 2}}\n```{DS_END}\n{DS_CALL}function{DS_SEP}echo\n```json\n{{}}\n```'
            f"{DS_END}<｜tool▁calls▁end｜>",
            [ADD, ECHO],
        ),
        (DEEPSEEK, f'Ok.{DS_CALL}add{DS_SEP}{{"a": 1,\n"b": 2}}{DS_END}', [ADD]),
        (
            HARMONY,
            "<|channel|>analysis<|message|>to=functions.add?<|end|><|start|>assistant"
            ' to=functions.add<|channel|>commentary json<|message|>{"a": 1, "b": 2}',
            [ADD],
        ),
        (
            HARMONY,
            "<|channel|>commentary to=functions.echo <|constrain|>json<|message|>{}<|call|>",
            [ECHO],
        ),
        (
            QWEN_XML,
            "<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n<parameter=b>\n2\n"
            "</parameter>\n</function>\n</tool_call>",
            [ADD],
        ),
        (
            QWEN_XML,
            "Now.<function=echo><parameter=text>\n\n a\n\n</parameter><parameter=options>"
            '{"x": "1"}</parameter></function><function=echo></function>',
            [ToolCall("echo", {"text": "\n a\n", "options": {"x": "1"}}), ECHO],
        ),
        (PYTHON, "add(1, 2)", [ADD]),
        (PYTHON, "i add.\n  add(b=2, a=1) \necho()\n", [ADD, ECHO]),
        (PYTHON, "add(1,b=2)", [ADD]),
        (PYTHON, "[add(1, 2), echo()]", [ADD, ECHO]),
        (
            PYTHON,
            "echo('a\\n\"é', options={'x': [true, none, False, (1, -2)]})",
            [ToolCall("echo", {"text": 'a\n"é', "options": {"x": [True, None, False, [1, -2]]}})],
        ),
    ],
)
def test_calls_are_read_in_their_order(
    format: ToolFormat, text: str, calls: list[ToolCall]
) -> None:
    assert parse(format, text) == calls


@pytest.mark.parametrize(
    ("format", "text"),
    [
        *[(format, "") for format in FORMATS],
        *[(format, 'The answer is {"a": 1}, or f(1).\n') for format in FORMATS],
        (HERMES, f"`tool_call` {OBJECT} </tool_call>"),
        (LLAMA, '{"answer": 4}'),
        (LLAMA, '{"name": "Ada", "born": 1815}'),
        (LLAMA, '{"answer": '),
        (LLAMA, f"I would write {PARAMETERS}"),
        (MISTRAL, OBJECT),
        (HARMONY, "<|channel|>final<|message|>Write to=functions.add and {}."),
        (PYTHON, "the call add(1, 2) is right"),
        (PYTHON, "add(1, 2) = 3"),
        (PYTHON, "add (1, 2)"),
        (PYTHON, "sub(1, 2)"),
        (PYTHON, "adds(1, 2)"),
        (PYTHON, "add(1,\n2)"),
        (PYTHON, "[1, 2]"),
    ],
)
def test_other_text_makes_no_call(format: ToolFormat, text: str) -> None:
    assert parse(format, text) == []


@pytest.mark.parametrize(
    ("format", "text", "problem"),
    [
        (HERMES, "<tool_call>{}</tool_call>", "a call is a json object with"),
        (HERMES, "<tool_call>[1]</tool_call>", "a call is a json object with"),
        (HERMES, "<tool_call>{'name': 1}</tool_call>", "no valid json: expecting property name"),
        (HERMES, f"<tool_call>{OBJECT[:-1]}", "no valid json: .* at character 46"),
        (HERMES, f"<tool_call>{OBJECT} and </tool_call>", "text behind the json object"),
        (HERMES, f"<tool_call>{OBJECT[:-1]}, {PARAMETERS[1:]}</tool_call>", '"name" twice'),
        (LLAMA, "<|python_tag|>add.call(a=1)", "no valid json"),
        (LLAMA, '{"name": "add", "parameters": {"a": 1', "no valid json"),
        (LLAMA, '{"parameters": {"a": 1, "b": 2}, "name": "add"} Done.', "no valid json"),
        (LLAMA, '<|python_tag|>{"answer": 4}', "a call is a json object"),
        (MISTRAL, "[TOOL_CALLS]", "no json object with the arguments"),
        (MISTRAL, "[TOOL_CALLS][]", "an empty list"),
        (MISTRAL, f"[TOOL_CALLS][{OBJECT}", "no valid json"),
        (MISTRAL, "[TOOL_CALLS][1]", "a call is a json object"),
        (MISTRAL, "[TOOL_CALLS]add[ARGS]{1}", "no valid json"),
        (GEMMA, "<|tool_call>add{a:1}<tool_call|>", "a call begins with call:"),
        (GEMMA, "<|tool_call>call:echo{text:hi}<tool_call|>", '"hi" is no value; a text needs'),
        (GEMMA, '<|tool_call>call:echo{text:<|"|>hi}<tool_call|>', "no closing"),
        (GEMMA, "<|tool_call>call:add{a:1,a:2}<tool_call|>", '"a" twice'),
        (GEMMA, "<|tool_call>call:add{a:1", "no , at the end"),
        (GEMMA, "<|tool_call>call:add{a:1,b:2}}<tool_call|>", "text behind the arguments"),
        (DEEPSEEK, f"{DS_CALL}add{{}}{DS_END}", "no <｜tool▁sep｜>"),
        (DEEPSEEK, f"{DS_CALL}add{DS_SEP}{{{DS_END}", "no valid json"),
        (HARMONY, "<|channel|>commentary to=functions.add<|message|>{<|call|>", "no valid json"),
        (HARMONY, "<|channel|>analysis to=python<|message|>{}", 'no tool is called "python"'),
        (QWEN_XML, "<function=add><parameter=a>1</function>", 'no </parameter> behind .* "a"'),
        (QWEN_XML, "<function=add>a=1</function>", 'text between parameters: "a=1"'),
        (QWEN_XML, "<function=echo>", "no </function>"),
        (
            QWEN_XML,
            "<function=add><parameter=a>1</parameter><parameter=a>1</parameter></function>",
            '"a" comes twice',
        ),
        (PYTHON, "add(1, 2, 3)", "got 3 arguments without names, allowed 2"),
        (PYTHON, "add(1, a=2)", '"a" comes twice'),
        (PYTHON, "add(1 2)", "no valid call"),
        (PYTHON, "add(*[1, 2])", "no literal value"),
        (PYTHON, "add(**{'a': 1})", "\\*\\* is not allowed"),
        (PYTHON, "add(1, add(1, 2))", '"add\\(1, 2\\)" is no literal value'),
        (PYTHON, "add(1, 2)(3)", "a call is the name of a tool"),
        (PYTHON, "echo(b'x')", "no json value"),
        (PYTHON, "echo(options={'a': 1, 'a': 2})", "a dict has one name twice"),
        (PYTHON, "echo(options={1: 2})", "the name 1 in an object is no text"),
        (PYTHON, "echo(__import__('os').system('true'))", "is no literal value"),
        (PYTHON, "[add(1, 2), sub(1, 2)]", 'no tool is called "sub"; the tools are: add, echo'),
    ],
)
def test_a_broken_call_is_malformed(format: ToolFormat, text: str, problem: str) -> None:
    *_, call = parse(format, text)
    assert isinstance(call, MalformedCall)
    assert re.search(problem, call.problem), call.problem
    assert call.text and call.text in text


@pytest.mark.parametrize("format", FORMATS)
def test_a_broken_call_does_not_hide_the_next_one(format: ToolFormat) -> None:
    texts = {
        HERMES: f"<tool_call>{{</tool_call><tool_call>{OBJECT}</tool_call>",
        LLAMA: f'{{"name": 1, "parameters": {{}}}}; {PARAMETERS}',
        MISTRAL: f"[TOOL_CALLS]{{[TOOL_CALLS]{OBJECT}",
        GEMMA: "<|tool_call>{<tool_call|><|tool_call>call:add{a:1,b:2}<tool_call|>",
        DEEPSEEK: f'{DS_CALL}{DS_END}{DS_CALL}add{DS_SEP}{{"a":1,"b":2}}{DS_END}',
        HARMONY: " to=functions.add<|message|>{<|end|><|start|>assistant to=functions.add"
        '<|message|>{"a":1,"b":2}',
        QWEN_XML: "<function=add>x</function><function=add><parameter=a>1</parameter>"
        "<parameter=b>2</parameter></function>",
        PYTHON: "add(1 2)\nadd(1,2)",
    }
    first, second = parse(format, texts[format])
    assert isinstance(first, MalformedCall) and second == ADD


@pytest.mark.parametrize(
    "text",
    [
        f"<think>\n<tool_call>{OBJECT}</tool_call>\n</think>\n\nDone.",
        f"<think><tool_call>{OBJECT}</tool_call>",
        f"[THINK]<tool_call>{OBJECT}</tool_call>[/THINK]",
    ],
)
def test_a_call_within_thinking_is_no_call(text: str) -> None:
    assert parse(HERMES, text) == []
    assert parse(HERMES, f"<think>a</think><tool_call>{OBJECT}</tool_call>") == [ADD]


def test_a_turn_has_a_limited_number_of_calls() -> None:
    calls = parse(PYTHON, "add(1,2)\n" * (MAX_CALLS + 50))
    assert calls[:MAX_CALLS] == [ADD] * MAX_CALLS
    assert calls[MAX_CALLS:] == [MalformedCall("", "a turn has at most 128 calls")]
