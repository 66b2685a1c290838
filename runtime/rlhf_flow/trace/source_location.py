"""The line of the user's own code at which an error was raised."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

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


@contextmanager
def told_at(code: Callable[..., object]) -> Iterator[None]:
    """Whatever the flow refuses inside says where a function of the user's is: it is about that.

    Raises:
        FlowError: a refusal, with the function's place in front where it is not this package's own.
    """
    try:
        yield
    except FlowError as error:
        raise type(error)(at_code(code, str(error))) from error


def at_code(code: Callable[..., object], text: str) -> str:
    """A text about a function, with its place in front where it is the user's."""
    found = getattr(code, "__code__", None)
    if found is None or _is_own(code.__module__):
        return text
    return f"{_short(Path(found.co_filename))}:{found.co_firstlineno}: {text}"


def place_within(outermost: CodeType) -> str | None:
    """`file:line` of the innermost frame of the user's code that is being run now. None: there is
    none.

    Args:
        outermost: of the function that called the user's code; frames outside of it do not count.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        if not _is_own(frame.f_globals.get("__name__")):
            return f"{_short(Path(frame.f_code.co_filename))}:{frame.f_lineno}"
        frame = frame.f_back
    return None


def with_place(error: BaseException, text: str) -> str:
    """A text about an error, with its place in front where it has one."""
    place = place_of(error)
    return text if place is None else f"{place}: {text}"


def place_of(error: BaseException) -> str | None:
    """`file:line` of the innermost frame that is neither this package's nor Python's own. None: all
    are."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if not _is_own(frame.f_globals.get("__name__")):
            return f"{_short(Path(frame.f_code.co_filename))}:{line}"
    return None


def _is_own(module: object) -> bool:
    """Whether a module is this package's, or Python's own."""
    package = str(module).partition(".")[0]
    return package == OWN_PACKAGE or package in sys.stdlib_module_names


def _short(file: Path) -> Path:
    """A file as it is named from the current folder, where it lies in it."""
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
