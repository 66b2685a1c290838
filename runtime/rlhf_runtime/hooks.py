"""What is called back while something goes on, without arguments or an answer."""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[], None]
"""A tick of progress, or a look after workers; what it raises ends what goes on."""


def nothing() -> None:
    """The hook of those who do not care."""
