"""Atomic writes: a file has its old content or its new one, never a part."""

from __future__ import annotations

import tempfile
from pathlib import Path


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file; links are followed, permissions are kept.

    Raises:
        OSError: it cannot be written; the file is as it was.
    """
    target = path.resolve()
    exists = target.exists()
    if exists:
        # A rename replaces even a file that the user has protected against writing.
        target.open("r+b").close()
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    unfinished = Path(name)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        # mkstemp makes files that only the user can read.
        unfinished.chmod(target.stat().st_mode & 0o7777 if exists else 0o644)
        unfinished.replace(target)
    finally:
        unfinished.unlink(missing_ok=True)
