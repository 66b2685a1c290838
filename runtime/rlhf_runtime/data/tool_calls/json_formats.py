"""Formats that write a call as one JSON object with its name: Hermes and Qwen, Llama 3, Mistral."""

from __future__ import annotations

from typing import Any

from rlhf_runtime.data.tool_calls.json_values import CallProblem, decode_json, skip_blank
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall, WrittenCalls, malformed
from rlhf_runtime.environments.tool_call import MalformedCall

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_PYTHON_TAG = "<|python_tag|>"
_TOOL_CALLS, _CALL_ID, _ARGS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
# Llama 3.2 separates calls by semicolons.
_SEPARATORS = ";,"


def hermes_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`.

    The closing tag may be missing at the end of the text.
    """
    position = 0
    while (begin := text.find(_OPEN, position)) >= 0:
        inner = begin + len(_OPEN)
        try:
            value, end = decode_json(text, inner)
            if not text.startswith(_CLOSE, end) and end < len(text):
                raise CallProblem(f"text behind the json object, where {_CLOSE} must be")
            position = min(end + len(_CLOSE), len(text))
            yield _from_object(text[begin:position], value)
        except CallProblem as problem:
            position = end_of_broken(text, inner, _OPEN, _CLOSE)
            yield malformed(text[begin:position], str(problem))


def llama_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of a text that is nothing but JSON objects with "name" and "parameters".

    The objects may be separated by semicolons. Behind `<|python_tag|>` anything else is malformed;
    without it, other text is prose, unless it begins as a call does and is no valid JSON.
    """
    _, tag, tagged = text.partition(_PYTHON_TAG)
    text = tagged if tag else text
    position = skip_blank(text, 0)
    # "{" and white space, then "name": so begins a call, and no answer that is JSON.
    names_a_call = text[position : position + 1] == "{" and text.startswith(
        ('"name"', '"type"'), skip_blank(text, position + 1)
    )
    is_first = True
    while position < len(text):
        begin = position
        try:
            value, position = decode_json(text, begin)
        except CallProblem as problem:
            if tag or names_a_call or not is_first:
                yield malformed(text[begin:], str(problem))
            return
        is_call = isinstance(value, dict) and "name" in value and _argument_names(value)
        if is_call or tag:
            yield _from_object(text[begin:position], value)
        elif is_first:
            return
        else:
            yield malformed(text[begin:position], _FORM)
        is_first = False
        while text[position : position + 1] in _SEPARATORS and position < len(text):
            position = skip_blank(text, position + 1)


def mistral_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls behind `[TOOL_CALLS]`.

    Three forms: a list of objects with "name", "arguments" and perhaps "id"; one such object; and
    `name[CALL_ID]id[ARGS]{...}`, in which both marks may be missing.
    """
    position = text.find(_TOOL_CALLS)
    while 0 <= position < len(text):
        begin = position
        try:
            calls, position = _mistral_block(text, begin + len(_TOOL_CALLS))
            yield from calls
            if position < len(text) and not text.startswith(_TOOL_CALLS, position):
                raise CallProblem(f"text behind a call, where {_TOOL_CALLS} or the end must be")
        except CallProblem as problem:
            # Behind a complete call the text begins there, else with the mark.
            begin, following = position, text.find(_TOOL_CALLS, position + 1)
            position = following if following >= 0 else len(text)
            yield malformed(text[begin:position], str(problem))


def _mistral_block(text: str, begin: int) -> tuple[list[WrittenCall | MalformedCall], int]:
    """Read what follows one `[TOOL_CALLS]`.

    Returns:
        The calls, and the position behind them.

    Raises:
        CallProblem: the text has none of the forms.
    """
    begin = skip_blank(text, begin)
    if text[begin : begin + 1] in ("[", "{") and not text.startswith((_ARGS, _CALL_ID), begin):
        value, end = decode_json(text, begin)
        if not isinstance(value, list):
            return [_from_object(text[begin:end], value)], end
        if not value:
            raise CallProblem("an empty list of calls")
        written = text[begin:end]
        return [_from_object(written, item) for item in value], end
    opening = text.find("{", begin)
    if opening < 0:
        raise CallProblem("no json object with the arguments behind the name")
    head = text[begin:opening].strip().removesuffix(_ARGS)
    name, _, id = head.partition(_CALL_ID)
    value, end = decode_json(text, opening)
    return [WrittenCall(text[begin:end], name.strip(), value, id.strip())], end


def end_of_broken(text: str, begin: int, opening: str, closing: str) -> int:
    """Return the end of a call that cannot be read: behind its closing tag, or before the next
    opening one, or the end of the text."""
    close, following = text.find(closing, begin), text.find(opening, begin)
    ends = [close + len(closing)] if close >= 0 else []
    ends += [following] if following >= 0 else []
    return min(ends, default=len(text))


_FORM = 'a call is a json object with "name" and "arguments"'


def _argument_names(value: dict[str, Any]) -> list[str]:
    return [name for name in ("arguments", "parameters") if name in value]


def _from_object(text: str, value: Any) -> WrittenCall | MalformedCall:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return malformed(text, _FORM)
    names = _argument_names(value)
    if len(names) == 2:
        return malformed(text, 'a call has "arguments" or "parameters", not both')
    # A tool without parameters may be called without arguments.
    arguments = value[names[0]] if names else {}
    return WrittenCall(text, value["name"], arguments, value.get("id", ""))
