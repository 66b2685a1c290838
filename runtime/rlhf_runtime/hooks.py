"""Callbacks during long operations, without arguments or result."""

from __future__ import annotations

from collections.abc import Callable

# Reports progress or checks workers; an exception ends the operation.
Hook = Callable[[], None]


def noop() -> None:
    """Do nothing."""
