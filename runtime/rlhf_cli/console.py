"""The console for pages and tables on standard output."""

from __future__ import annotations

from rich.console import Console

PIPE_WIDTH = 140
"""Width in columns where standard output is a file or a pipe."""


def page_console(*, highlight: bool = False) -> Console:
    """A console for standard output.

    Args:
        highlight: colour numbers and the like in a terminal.
    """
    console = Console(highlight=highlight)
    return console if console.is_terminal else Console(width=PIPE_WIDTH, highlight=highlight)
