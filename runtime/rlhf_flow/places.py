"""The line of the user's own code at which an error was raised."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_flow.errors import FlowError

OWN_PACKAGE = __name__.partition(".")[0]


@contextmanager
def told_with_place() -> Iterator[None]:
    """Whatever the flow refuses inside says at which line of the user's code.

    Raises:
        FlowError: a refusal, with its place in front.
    """
    try:
        yield
    except FlowError as error:
        raise type(error)(with_place(error, str(error))) from error


def with_place(error: BaseException, text: str) -> str:
    """A text about an error, with its place in front where it has one."""
    place = place_of(error)
    return text if place is None else f"{place}: {text}"


def place_of(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither this package's nor Python's own. None: all
    are."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package != OWN_PACKAGE and package not in sys.stdlib_module_names:
            return f"{_short(Path(frame.f_code.co_filename))}:{line}"
    return None


def _short(file: Path) -> Path:
    """A file as it is named from the current folder, where it lies in it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
