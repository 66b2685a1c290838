"""Raises operating system errors about a user's file as errors of its content."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_api.errors import RlhfError


@contextmanager
def unreadable_as(kind: type[RlhfError], label: str, path: str | Path) -> Iterator[None]:
    """Raise an OSError of the body as an error of another kind.

    Args:
        kind: of the error.
        label: of the file in the message.
        path: of the file.

    Raises:
        kind: the file cannot be read.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"{label} cannot be read: got {path} ({error.strerror or error}), allowed one that "
            "this user can read; correct its path or permissions, or copy it again"
        ) from error
