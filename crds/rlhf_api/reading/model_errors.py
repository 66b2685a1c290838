"""Pydantic's errors in the contract's words: fault, got, allowed, do."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from fractions import Fraction
from math import ceil
from typing import Any

from pydantic_core import ErrorDetails

from rlhf_api.entrypoint import entrypoint_from_file
from rlhf_api.problems import FieldPath, Problem
from rlhf_api.quantity import guess_quantity
from rlhf_api.reading.fields import FieldDoc, contract, field_at
from rlhf_api.reading.suggestions import nearest, suggest

# The fault for each of pydantic's error types that the contract's models raise.
_WHAT = {
    "string_type": "not a text",
    "int_type": "not an integer",
    "float_type": "not a number",
    "bool_type": "neither true nor false",
    "enum": "not one of its values",
    "literal_error": "not one of its values",
    "greater_than": "too small",
    "greater_than_equal": "too small",
    "less_than": "too large",
    "less_than_equal": "too large",
    "finite_number": "not a finite number",
    "string_too_short": "too short",
    "string_too_long": "too long",
    "string_pattern_mismatch": "not of the right form",
    "too_short": "too few entries",
    "too_long": "too many entries",
    "tuple_type": "not a list",
    "dict_type": "not a map",
    "model_type": "not a map",
}

_MAX_VALUE_CHARACTERS = 60

# For fields with an integer number of seconds, if people write a unit.
_SECONDS: Mapping[str, Fraction] = {
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86400),
}
_DURATION = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*")


def convert_error(document: Any, error: ErrorDetails) -> Problem:
    """Convert one of pydantic's errors about a document to a problem."""
    location: FieldPath = error["loc"]
    if location and location[-1] == "[key]":
        return _bad_key(location[:-1])
    if error["type"] == "missing":
        return _missing(location)
    location = _existing(document, location)
    if error["type"] == "extra_forbidden":
        return _unknown(location)
    if error["type"] == "value_error":
        return Problem(location, str(error["ctx"]["error"]))
    return _bad_value(location, error)


def format_value(value: Any) -> str:
    """Format a value for a message: on one line, and shortened if it is long."""
    if value is None:
        return "nothing"
    # Quotes only where blanks, control characters or types would be invisible.
    plain = isinstance(value, str) and value.isprintable() and value.strip() == value != ""
    text = value if plain else json.dumps(value)
    if len(text) <= _MAX_VALUE_CHARACTERS:
        return str(text)
    return f"{text[:_MAX_VALUE_CHARACTERS]}... ({len(text)} characters)"


def _existing(document: Any, location: FieldPath) -> FieldPath:
    """The longest prefix of a location that exists in the document."""
    # Locations of unions end with the name of the failed member, which is no key of the document.
    node = document
    for length, segment in enumerate(location):
        if not _has(node, segment):
            return location[:length]
        node = node[segment]
    return location


def _has(node: Any, segment: str | int) -> bool:
    if isinstance(node, list):
        return isinstance(segment, int) and segment < len(node)
    return isinstance(node, dict) and segment in node


def _bad_key(location: FieldPath) -> Problem:
    parent = field_at(location[:-1])
    return Problem(
        location,
        "a key that is not allowed here",
        got=format_value(location[-1]),
        allowed=parent.key_allowed if parent else "",
        do="rename it",
    )


def _missing(location: FieldPath) -> Problem:
    field = field_at(location)
    assert field is not None, f"the contract has no {location}"
    return Problem(
        location,
        "a required field is missing",
        allowed=_allowed(field),
        do=f"add {field.name}, {_uncapitalized(field.summary)}",
    )


# A sentence as the end of another one. Names such as RLHFJob keep their capitals.
def _uncapitalized(sentence: str) -> str:
    text = sentence.rstrip(".")
    return text[:1].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def _unknown(location: FieldPath) -> Problem:
    parent = field_at(location[:-1]) or contract()
    reason = parent.reserved.get(str(location[-1]))
    if reason is not None:
        return Problem(
            location,
            "a field that a job cannot set",
            got=format_value(location[-1]),
            do=f"remove it: {reason}",
        )
    command = f"rlhf explain {parent.path}".rstrip()
    return Problem(
        location,
        "unknown field",
        got=format_value(location[-1]),
        allowed=", ".join(field.name for field in parent.fields),
        do=suggest(str(location[-1]), parent) or f"remove it; `{command}` lists the fields",
    )


def _bad_value(location: FieldPath, error: ErrorDetails) -> Problem:
    field = field_at(location)
    assert field is not None, f"the contract has no {location}"
    value = error["input"]
    what = _WHAT.get(error["type"], error["msg"])
    if value is None:
        what = "no value"
    elif field.kind == "quantity":
        what = "not a quantity"
    elif field.kind == "any":
        what = "not a plain value"
    return Problem(
        location,
        what,
        got=_got(error),
        allowed=_allowed(field),
        do=_fix(value, error["type"], field, str(location[-1])),
    )


def _got(error: ErrorDetails) -> str:
    value = error["input"]
    if error["type"] in ("too_short", "too_long"):
        return f"{len(value)} entries"
    if error["type"] in ("string_too_short", "string_too_long"):
        return f"{len(value)} characters"
    return f"the text {format_value(value)}" if _is_quoted_number(value) else format_value(value)


def _allowed(field: FieldDoc) -> str:
    if field.kind == "object":
        return f"a map of {', '.join(child.name for child in field.fields)}"
    return field.allowed


def _fix(value: Any, fault: str, field: FieldDoc, name: str) -> str:
    """The usual fix for a value; empty if `allowed` says enough."""
    word = str(value).lower()
    if value is None:
        return "write a value" if field.required else "write a value or remove the key"
    if fault == "string_type" and isinstance(value, bool | int | float):
        return f'write "{json.dumps(value)}", in quotes'
    if fault == "bool_type" and word in ("yes", "on", "y", "1", "true"):
        return "write true, without quotes"
    if fault == "bool_type" and word in ("no", "off", "n", "0", "false"):
        return "write false, without quotes"
    if fault in ("int_type", "float_type") and _is_quoted_number(value):
        return "remove the quotes"
    quantity = (
        guess_quantity(value) if field.kind == "quantity" and isinstance(value, str) else None
    )
    if quantity is not None:
        return f"write {quantity}"
    seconds = parse_seconds(value) if "Seconds" in name and isinstance(value, str) else None
    if seconds is not None:
        return f"write {seconds}, without a unit: the field's name states it"
    if fault in ("enum", "literal_error") and isinstance(value, str):
        near = nearest(value, [member.value for member in field.members])
        return f"did you mean {near}?" if near else ""
    module = entrypoint_from_file(value) if name == "entrypoint" and isinstance(value, str) else ""
    if module:
        return f"did you mean {module}?"
    return "write - before each entry" if fault == "tuple_type" else ""


def _is_quoted_number(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        float(value)
    except ValueError:
        return False
    return True


def parse_seconds(text: str) -> int | None:
    """The seconds of a text such as `2h` or `1.5 min`, rounded up; None if it is no duration."""
    parts = _DURATION.fullmatch(text)
    if parts is None or parts[2] not in _SECONDS:
        return None
    return ceil(Fraction(parts[1]) * _SECONDS[parts[2]])
