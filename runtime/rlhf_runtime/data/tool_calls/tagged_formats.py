"""Formats that write the name of a tool between tags: DeepSeek, gpt-oss (harmony), Qwen3-Coder."""

from __future__ import annotations

import re

from rlhf_runtime.data.tool_calls.json_formats import end_of_broken
from rlhf_runtime.data.tool_calls.json_values import CallProblem, decode_json, quoted
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall, WrittenCalls, malformed

_CALL, _CALL_END, _SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
_FENCE = "```json"
_MESSAGE, _START = "<|message|>", "<|start|>"
_MESSAGE_ENDS = ("<|end|>", "<|call|>", "<|return|>", _START)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_FUNCTION = re.compile(r"<function=([^>\n]*)>")
_PARAMETER = re.compile(r"\s*<parameter=([^>\n]*)>")
_FUNCTION_OPEN, _FUNCTION_CLOSE, _PARAMETER_CLOSE = "<function=", "</function>", "</parameter>"


def deepseek_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of DeepSeek's two forms.

    V3 and R1 write `function<sep>name`, and the arguments in a fence of JSON on lines of their own;
    V3.1 writes `name<sep>` and the arguments.
    """
    position = 0
    while (begin := text.find(_CALL, position)) >= 0:
        inner = begin + len(_CALL)
        try:
            name, arguments_begin = _deepseek_name(text, inner)
            arguments, end = decode_json(text, arguments_begin)
            if text.startswith("```", end):
                end += len("```")
            if not text.startswith(_CALL_END, end) and end < len(text):
                raise CallProblem(f"text behind the json object, where {_CALL_END} must be")
            position = min(end + len(_CALL_END), len(text))
            yield WrittenCall(text[begin:position], name, arguments)
        except CallProblem as problem:
            position = end_of_broken(text, inner, _CALL, _CALL_END)
            yield malformed(text[begin:position], str(problem))


def _deepseek_name(text: str, begin: int) -> tuple[str, int]:
    """Return the name of a call, and the position of its arguments.

    Raises:
        CallProblem: they are not separated.
    """
    separator = text.find(_SEPARATOR, begin)
    if separator < 0 or separator > end_of_broken(text, begin, _CALL, _CALL_END):
        raise CallProblem(f"no {_SEPARATOR} behind the name")
    behind = separator + len(_SEPARATOR)
    line_end = text.find("\n", behind)
    fence = line_end + 1 if line_end >= 0 else len(text)
    if text.startswith(_FENCE, fence):
        return text[behind:line_end].strip(), fence + len(_FENCE)
    return text[begin:separator].strip(), behind


def harmony_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of a turn of gpt-oss: messages to `functions.NAME`, whose text is JSON.

    The turn begins within the header of its first message.
    """
    position = 0
    while (message := text.find(_MESSAGE, position)) >= 0:
        recipient = _RECIPIENT.search(text, position, message)
        body = message + len(_MESSAGE)
        end = _end_of_message(text, body)
        if recipient is not None:
            try:
                arguments, end = decode_json(text, body)
                if end < len(text) and not text.startswith(_MESSAGE_ENDS, end):
                    raise CallProblem("text behind the json object of the arguments")
                name = recipient[1].removeprefix(_FUNCTIONS)
                yield WrittenCall(text[position:end], name, arguments)
            except CallProblem as problem:
                end = _end_of_message(text, body)
                yield malformed(text[position:end], str(problem))
        position = end


def _end_of_message(text: str, begin: int) -> int:
    ends = [end for mark in _MESSAGE_ENDS if (end := text.find(mark, begin)) >= 0]
    return min(ends, default=len(text))


def qwen_xml_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of Qwen3-Coder: `<function=NAME>` with `<parameter=NAME>` for every argument.

    A value is all text between its tags but one line break at either end; the tool's schema says
    what it is converted to.
    """
    position = 0
    while (opening := _FUNCTION.search(text, position)) is not None:
        try:
            arguments, position = _parameters(text, opening.end())
            written = text[opening.start() : position]
            yield WrittenCall(written, opening[1].strip(), arguments)
        except CallProblem as problem:
            position = end_of_broken(text, opening.end(), _FUNCTION_OPEN, _FUNCTION_CLOSE)
            yield malformed(text[opening.start() : position], str(problem))


def _parameters(text: str, position: int) -> tuple[dict[str, str], int]:
    """Read the parameters of a function.

    Returns:
        Their texts by name, and the position behind the function's closing tag.

    Raises:
        CallProblem: there is another text between them, or one comes twice.
    """
    arguments: dict[str, str] = {}
    while (opening := _PARAMETER.match(text, position)) is not None:
        name = opening[1].strip()
        if name in arguments:
            raise CallProblem(f"parameter {quoted(name)} comes twice")
        end = text.find(_PARAMETER_CLOSE, opening.end())
        if end < 0:
            raise CallProblem(f"no {_PARAMETER_CLOSE} behind parameter {quoted(name)}")
        arguments[name] = text[opening.end() : end].removeprefix("\n").removesuffix("\n")
        position = end + len(_PARAMETER_CLOSE)
    closing = text.find(_FUNCTION_CLOSE, position)
    between = text[position:] if closing < 0 else text[position:closing]
    if between.strip():
        raise CallProblem(f"text between parameters: {quoted(between.strip())}")
    if closing < 0:
        raise CallProblem(f"no {_FUNCTION_CLOSE} behind the parameters")
    return arguments, closing + len(_FUNCTION_CLOSE)
