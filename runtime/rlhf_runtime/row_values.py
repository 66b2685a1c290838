"""Values of a data row, as data and verifiers read them. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any


def has_field(row: Mapping[str, Any], name: str) -> bool:
    """True if a row has a field of this name, or a map of maps for a dotted name."""
    try:
        field_value(row, name)
    except KeyError:
        return False
    return True


def field_value(row: Mapping[str, Any], name: str) -> Any:
    """Return a field's value; `reward.truth` also names the entry `truth` of the map `reward`.

    Raises:
        KeyError: the row has no such field.
    """
    # A column may have a dot in its own name: the longest name counts.
    head, rest = name, ""
    while head:
        if head in row and not rest:
            return row[head]
        if rest and isinstance(row.get(head), Mapping) and has_field(row[head], rest):
            return field_value(row[head], rest)
        head, _, last = head.rpartition(".")
        rest = f"{last}.{rest}" if rest else last
    raise KeyError(name)


def value_or_none(row: Mapping[str, Any], name: str) -> Any:
    """Return a field's value as `field_value` does; None if the row has no such field."""
    try:
        return field_value(row, name)
    except KeyError:
        return None


def answer_texts(value: Any) -> list[str]:
    """Return an answer as texts: those of its items if it is a list, of which any is right.

    Raises:
        ValueError: the value is neither a text nor a finite number, nor a list of some, or it is
            blank.
    """
    texts = [_text(item) for item in value] if isinstance(value, list | tuple) else [_text(value)]
    # A blank answer would be right for a model that says nothing.
    if not any(text.strip() for text in texts):
        raise ValueError(f"an answer is blank: got {value!r}, allowed a text; fill it in")
    return [text for text in texts if text.strip()]


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, Decimal) and value.is_finite():
        return str(value)
    # A message of the assistant, as data of conversations have it.
    if isinstance(value, Mapping) and value.get("role") == "assistant":
        return _text(value.get("content"))
    # bool is a subclass of int, but no number.
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(_refusal(value))
    if isinstance(value, int):
        return str(value)
    if not math.isfinite(value):
        raise ValueError(_refusal(value))
    # Columnar files turn whole numbers into floats where a value is missing: 42.0 means 42.
    return str(int(value)) if value.is_integer() else repr(value)


def _refusal(value: Any) -> str:
    return (
        f"an answer is of type {type(value).__name__}: got {str(value)[:80]!r}, allowed a text, a "
        "number or a list of these; name the field with the answer itself, such as `reward.truth`"
    )
