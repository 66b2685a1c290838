"""Refusals of settings that mean nothing, where they are written."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from math import isfinite

from rlhf_api.reading.suggestions import nearest
from rlhf_flow.errors import FlowError


def check(owner: str, name: str, value: object, is_allowed: bool, allowed: str) -> None:
    """Refuse a setting's value.

    Args:
        owner: what has the setting.
        name: the setting's.
        value: what was given.
        is_allowed: whether it may be.
        allowed: what may be, in words.

    Raises:
        FlowError: it may not.
    """
    if not is_allowed:
        raise FlowError(
            f"{owner} cannot have this {name}: got {name}={value!r}, allowed {allowed}; change it"
        )


def check_member(owner: str, name: str, value: object, kind: type[Enum]) -> None:
    """Refuse what is no member of an enumeration.

    Raises:
        FlowError: it is none.
    """
    members = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
    check(owner, name, value, isinstance(value, kind), f"{members} of {kind.__module__}")


def is_count(value: object, least: int = 1) -> bool:
    """Whether a value is a whole number of at least so much."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def is_number(value: object, least: float = 0.0) -> bool:
    """Whether a value is a finite number of at least so much."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and isfinite(value) and value >= least  # type: ignore[arg-type,operator]


def suggest(word: str, names: Iterable[str], otherwise: str) -> str:
    """What to do about a name that is none of those allowed: take the nearest, if one is near, or
    the shortest that begins so."""
    known = sorted(names, key=lambda name: (len(name), name))
    begun = (name for name in known if len(word) > 2 and name.startswith(word))
    near = nearest(word, known) or next(begun, "")
    return f"did you mean {near}?" if near else otherwise
