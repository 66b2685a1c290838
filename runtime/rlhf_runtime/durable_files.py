"""Files whose content and names survive the end of the node."""

from __future__ import annotations

import os
from pathlib import Path


def sync_path(path: str | os.PathLike[str]) -> None:
    """Wait until the disk has the content of a file, or the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_durably(path: Path, text: str) -> None:
    """Write a text file, and wait until the disk has it. Its old content stays until then.

    One process at a time writes a file: the new content is first in NAME.new.

    Raises:
        OSError: it cannot be written.
    """
    new = path.with_name(f"{path.name}.new")
    new.write_text(text, encoding="utf-8")
    sync_path(new)
    new.replace(path)
    sync_path(path.parent)
