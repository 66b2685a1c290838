"""Values of a data row, as data and verifiers read them. Standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping
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
    # A column may have a dot in its own name.
    if name in row:
        return row[name]
    first, dot, rest = name.partition(".")
    if not dot or not isinstance(row.get(first), Mapping):
        raise KeyError(name)
    try:
        return field_value(row[first], rest)
    except KeyError:
        raise KeyError(name) from None


def answer_texts(value: Any) -> list[str]:
    """Return an answer as texts: those of its items if it is a list, of which any is right.

    Raises:
        ValueError: the value is neither a text nor a finite number, nor a list of some.
    """
    texts = [_text(item) for item in value] if isinstance(value, list | tuple) else [_text(value)]
    if not texts:
        raise ValueError(_refusal(value))
    return texts


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
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
