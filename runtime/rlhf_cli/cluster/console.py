"""Where pages are printed: a terminal, or a file or pipe of fixed width."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 140
"""Columns of what goes to a file or a pipe."""


def console() -> Console:
    """Standard output, without colours that the text itself does not ask for."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(width=PIPE_WIDTH, highlight=False)
