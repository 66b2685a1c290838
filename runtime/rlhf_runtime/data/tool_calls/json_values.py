"""JSON values of calls: strict decoding, and the check of values from any format."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_DEPTH = 64
"""Lists and objects within each other."""
_BLANK = re.compile(r"\s*")


class CallProblem(Exception):
    """The reason why a call is malformed, in plain words for the model."""


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        # Every name takes its first pair away; what remains has come twice.
        remaining = iter(value)
        twice = next(name for name, _ in pairs if name != next(remaining, None))
        raise CallProblem(f"the json object has {quoted(twice)} twice")
    return value


def _constant(name: str) -> None:
    raise CallProblem(f"{name.lower()} is no json value")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_constant=_constant)


def decode_json(text: str, begin: int = 0) -> tuple[Any, int]:
    """Decode the JSON value at a position, white space before it skipped.

    Returns:
        The value, and the position of the first character behind it and behind white space.

    Raises:
        CallProblem: there is no valid JSON value.
    """
    begin = skip_blank(text, begin)
    try:
        value, end = _DECODER.raw_decode(text, begin)
    except json.JSONDecodeError as error:
        position = error.pos - begin + 1
        raise CallProblem(f"no valid json: {error.msg.lower()} at character {position}") from error
    except RecursionError as error:
        raise CallProblem(_too_deep()) from error
    except ValueError as error:  # an integer of thousands of digits
        raise CallProblem("a number is too long") from error
    return value, skip_blank(text, end)


def skip_blank(text: str, begin: int) -> int:
    """Return the position of the first character that is no white space."""
    match = _BLANK.match(text, begin)
    return begin if match is None else match.end()


def checked_value(value: Any, depth: int = 0) -> Any:
    """Return a value as JSON has it: tuples become lists.

    Raises:
        CallProblem: JSON cannot express the value, or it is too deep.
    """
    if depth > MAX_DEPTH:
        raise CallProblem(_too_deep())
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _checked_text(value)
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise CallProblem(f"{value} is no json value")
    if isinstance(value, list | tuple):
        return [checked_value(part, depth + 1) for part in value]
    if isinstance(value, Mapping):
        return {_checked_key(k): checked_value(v, depth + 1) for k, v in value.items()}
    raise CallProblem(f"{quoted(value)} is no json value")


def quoted(value: Any) -> str:
    """Return a value as messages for the model show it: JSON, cut to 60 characters."""
    try:
        text = json.dumps(value)
    except (TypeError, ValueError, RecursionError):
        text = str(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _checked_text(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CallProblem("a text has half of a surrogate pair") from error
    return text


def _checked_key(key: Any) -> str:
    if isinstance(key, str):
        return _checked_text(key)
    raise CallProblem(f"the name {quoted(key)} in an object is no text")


def _too_deep() -> str:
    return f"lists and objects are more than {MAX_DEPTH} deep"
