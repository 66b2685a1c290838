"""Callbacks during long operations, without arguments or result."""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[], None]
"""Reports progress or checks workers; an exception ends the operation."""


def noop() -> None:
    """Do nothing."""
