"""On which rows the result of an operation depends."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


class Scope(Enum):
    """Which rows the result of one row depends on, from the fewest to all."""

    ROW = "row"
    """Itself alone."""
    GROUP = "group"
    """All rows of its prompt."""
    BATCH = "batch"
    """All rows: built-in operations sum over ranks, a function of the user's own gets them."""


_SCOPES = tuple(Scope)


def widest(scopes: Iterator[Scope]) -> Scope:
    """The scope of several operations together."""
    return max(scopes, key=_SCOPES.index)
