"""Mark of tools whose calls must not be repeated. Standard library only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Method = TypeVar("Method", bound=Callable[..., Any])

_MARK = "__rlhf_side_effects__"


def side_effects(method: Method) -> Method:
    """Declare that a tool changes something outside of its object.

    When a conversation is rebuilt after a restart, its calls are not made again: their answers are
    read from the journal. State that such a call leaves in the object is then missing, unless the
    class has `snapshot` and `restore`.
    """
    setattr(method, _MARK, True)
    return method


def has_side_effects(method: Callable[..., Any]) -> bool:
    """True if a tool was marked by `side_effects`."""
    return bool(getattr(method, _MARK, False))
