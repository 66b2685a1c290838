"""Lock of a run's folder: one process at a time uses it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_runtime.disk_space import is_disk_full
from rlhf_runtime.errors import FolderInUse, FolderUnusable

# The locked file in a folder.
LOCK = ".lock"


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock a folder. The lock ends with the process, however that ends.

    Raises:
        FolderInUse: another process has the lock.
        FolderUnusable: the folder cannot be created or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        _hold(descriptor, folder)
        yield
    finally:
        os.close(descriptor)


def _hold(descriptor: int, folder: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(descriptor, 0)
        try:
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except OSError as error:
            # The number is for messages only.
            if not is_disk_full(error):
                raise
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode().strip() or "unknown"
        raise FolderInUse(
            f"another run writes to this folder: got {folder}, held by process {holder}; wait "
            "for it, or choose another folder with --output"
        ) from None
    except OSError as error:
        raise _unusable(folder, error) from error


def _unusable(folder: Path, error: OSError) -> FolderUnusable:
    reason = (error.strerror or str(error)).lower()
    return FolderUnusable(
        f"the run's folder cannot be written: got {folder} ({reason}), allowed a folder of "
        "your own on a disk with space; choose another with --output"
    )
