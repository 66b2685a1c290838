"""The format of Gemma 4 and FunctionGemma: `call:NAME{key:value,...}` between tags.

Texts stand between quote marks that are tokens, so nothing in them is escaped.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from rlhf_runtime.data.tool_calls.json_formats import end_of_broken
from rlhf_runtime.data.tool_calls.json_values import (
    MAX_DEPTH,
    CallProblem,
    decode_json,
    quoted,
    skip_blank,
)
from rlhf_runtime.data.tool_calls.tools import Tools, WrittenCall, WrittenCalls, malformed


class _Marks(NamedTuple):
    opening: str
    closing: str
    quote: str


_FORMS = (
    _Marks("<|tool_call>", "<tool_call|>", '<|"|>'),
    _Marks("<start_function_call>", "<end_function_call>", "<escape>"),
)
_NAME = re.compile(r"\s*call:([^{\s]*)\s*(?=\{)")
_KEY = re.compile(r"([^:,{}\[\]<]+):")
_SCALAR = re.compile(r"[^,{}\[\]<]+")


def gemma_calls(text: str, tools: Tools) -> WrittenCalls:
    """Yield the calls of a text; the last one may lack its closing tag."""
    marks = next((form for form in _FORMS if form.opening in text), _FORMS[0])
    position = 0
    while (begin := text.find(marks.opening, position)) >= 0:
        inner = begin + len(marks.opening)
        try:
            name = _NAME.match(text, inner)
            if name is None:
                raise CallProblem("a call begins with call:, the tool's name and {")
            reader = _Values(text, name.end(), marks.quote)
            arguments = reader.value()
            end = reader.position
            if not text.startswith(marks.closing, end) and end < len(text):
                raise CallProblem(f"text behind the arguments, where {marks.closing} must be")
            position = min(end + len(marks.closing), len(text))
            yield WrittenCall(text[begin:position], name[1], arguments)
        except CallProblem as problem:
            position = end_of_broken(text, inner, marks.opening, marks.closing)
            yield malformed(text[begin:position], str(problem))


class _Values:
    """A reader of values; `position` is that of the next character behind white space."""

    def __init__(self, text: str, position: int, quote: str) -> None:
        self._text, self._quote = text, quote
        self.position = skip_blank(text, position)

    def value(self, depth: int = 0) -> Any:
        """Read a value.

        Raises:
            CallProblem: there is none.
        """
        if depth > MAX_DEPTH:
            raise CallProblem(f"lists and objects are more than {MAX_DEPTH} deep")
        if self._text.startswith(self._quote, self.position):
            return self._quoted()
        if self._take("{"):
            return self._object(depth)
        if self._take("["):
            return self._list(depth)
        return self._scalar()

    def _object(self, depth: int) -> dict[str, Any]:
        values: dict[str, Any] = {}
        while not self._take("}"):
            if values:
                self._require(",")
            key = self._key()
            if key in values:
                raise CallProblem(f"the object has {quoted(key)} twice")
            values[key] = self.value(depth + 1)
        return values

    def _list(self, depth: int) -> list[Any]:
        values: list[Any] = []
        while not self._take("]"):
            if values:
                self._require(",")
            values.append(self.value(depth + 1))
        return values

    def _key(self) -> str:
        if self._text.startswith(self._quote, self.position):
            key = self._quoted()
            self._require(":")
            return key
        match = _KEY.match(self._text, self.position)
        if match is None:
            raise CallProblem(f"no name and colon at {self._shown()}")
        self.position = skip_blank(self._text, match.end())
        return match[1].strip()

    def _quoted(self) -> str:
        begin = self.position + len(self._quote)
        end = self._text.find(self._quote, begin)
        if end < 0:
            raise CallProblem(f"no closing {self._quote}")
        self.position = skip_blank(self._text, end + len(self._quote))
        return self._text[begin:end]

    def _scalar(self) -> Any:
        match = _SCALAR.match(self._text, self.position)
        if match is None:
            raise CallProblem(f"no value at {self._shown()}")
        written = match[0].strip()
        try:
            value, end = decode_json(written)
        except CallProblem:
            end = -1
        if end != len(written):
            raise CallProblem(
                f"{quoted(written)} is no value; a text needs {self._quote} around it"
            )
        self.position = match.end()
        return value

    def _take(self, character: str) -> bool:
        if not self._text.startswith(character, self.position):
            return False
        self.position = skip_blank(self._text, self.position + 1)
        return True

    def _require(self, character: str) -> None:
        if not self._take(character):
            raise CallProblem(f"no {character} at {self._shown()}")

    def _shown(self) -> str:
        behind = self._text[self.position : self.position + 20]
        return quoted(behind) if behind else "the end"
