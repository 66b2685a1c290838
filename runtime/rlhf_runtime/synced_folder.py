"""Names of files that survive the end of the node."""

from __future__ import annotations

import os


def sync_folder(path: str | os.PathLike[str]) -> None:
    """Wait until the disk has the names of a folder's files."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
