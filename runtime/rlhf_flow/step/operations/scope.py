"""The rows on which the result of an operation depends."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum


class Scope(Enum):
    """Rows on which the result of one row depends, from the fewest to all."""

    ROW = "row"
    """The row itself."""
    GROUP = "group"
    """All rows of its prompt."""
    BATCH = "batch"
    """All rows: built-in operations sum over ranks, a custom function gets all rows."""


# From narrow to wide: the order of the definition.
_SCOPES = tuple(Scope)


def widest(scopes: Iterator[Scope]) -> Scope:
    """The scope of several operations together."""
    return max(scopes, key=_SCOPES.index)
