"""What the system says of a user's file or folder, told as an error of what is in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_api.errors import RlhfError


@contextmanager
def unreadable_as(kind: type[RlhfError], what: str, place: str | Path) -> Iterator[None]:
    """Raise what the system says inside as an error of that kind.

    Args:
        kind: of the error.
        what: is read, as the message names it.
        place: its path.

    Raises:
        kind: the system does not let it be read.
    """
    try:
        yield
    except OSError as error:
        raise kind(
            f"{what} cannot be read: got {place} ({error.strerror or error}), allowed one that "
            "this user can read; correct its path or permissions, or copy it again"
        ) from error
