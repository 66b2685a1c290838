"""Prefixes errors with the line of the user's code that they are about."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType

from rlhf_flow.errors import FlowError

OWN_PACKAGE = __name__.partition(".")[0]


@contextmanager
def errors_located() -> Iterator[None]:
    """Prefix a FlowError of the body with the user's line that caused it.

    Raises:
        FlowError: the same error, with its location.
    """
    try:
        yield
    except FlowError as error:
        # Of the same class: callers tell errors apart by it.
        raise type(error)(prefix_location(error, str(error))) from error


@contextmanager
def errors_located_at(code: Callable[..., object]) -> Iterator[None]:
    """Prefix a FlowError of the body with the line of a function that it is about.

    Raises:
        FlowError: the same error, with the location of the function if it is the user's.
    """
    try:
        yield
    except FlowError as error:
        raise type(error)(prefix_definition(code, str(error))) from error


def prefix_definition(code: Callable[..., object], text: str) -> str:
    """Prefix a text with the line of a function, if the function is the user's."""
    compiled = getattr(code, "__code__", None)
    if compiled is None or _is_own(code.__module__):
        return text
    return f"{_short(Path(compiled.co_filename))}:{compiled.co_firstlineno}: {text}"


def calling_location(outermost: CodeType) -> str | None:
    """`file:line` of the innermost running frame of the user's code. None: there is none.

    Args:
        outermost: of the function that called the user's code; frames outside of it do not count.
    """
    return _users_location(_running_frames(outermost))


def prefix_location(error: BaseException, text: str) -> str:
    """Prefix a text with the location of an error, if it has one."""
    location = error_location(error)
    return text if location is None else f"{location}: {text}"


def error_location(error: BaseException) -> str | None:
    """`file:line` of the innermost frame of the user's code in a traceback. None: there is none."""
    return _users_location(reversed(list(traceback.walk_tb(error.__traceback__))))


def _running_frames(outermost: CodeType) -> Iterator[tuple[FrameType, int]]:
    # inspect.stack() would read the source of every frame.
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not outermost:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _users_location(frames: Iterable[tuple[FrameType, int]]) -> str | None:
    """`file:line` of the first frame of the user's code; the innermost frame comes first."""
    others = [
        (Path(frame.f_code.co_filename), line)
        for frame, line in frames
        if not _is_own(frame.f_globals.get("__name__"))
    ]
    # A library that the user's code calls is installed; an installed algorithm is the user's, too.
    written = [(file, line) for file, line in others if not _is_installed(file)]
    for file, line in written or others:
        return f"{_short(file)}:{line}"
    return None


def _is_installed(file: Path) -> bool:
    return not {"site-packages", "dist-packages"}.isdisjoint(file.parts)


def _is_own(module: object) -> bool:
    """True for modules of this package and of the standard library."""
    # The user wrote neither; contextlib, for one, lies between a step and the flow.
    package = str(module).partition(".")[0]
    return package == OWN_PACKAGE or package in sys.stdlib_module_names


def _short(file: Path) -> Path:
    # Relative to the current folder, which is how a user types it.
    here = Path.cwd()
    return file.relative_to(here) if file.is_relative_to(here) else file
