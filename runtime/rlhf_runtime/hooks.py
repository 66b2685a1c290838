"""Callbacks during long operations, without arguments or result."""

from __future__ import annotations

from collections.abc import Callable

# Reports progress or checks workers; an exception ends the operation.
Hook = Callable[[], None]


def noop() -> None:
    """Do nothing."""


# Calls a write, again and again while the disk is full.
UntilWritten = Callable[[Callable[[], object]], None]


def write_once(write: Callable[[], object]) -> None:
    """Call a write once."""
    write()
