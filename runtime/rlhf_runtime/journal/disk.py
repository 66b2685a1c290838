"""Writes of the journal that survive the end of the node."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_runtime.disk_space import with_cause
from rlhf_runtime.durable_files import sync_path
from rlhf_runtime.telemetry.errors import CannotRecord


def make_folder(folder: Path) -> None:
    """Create a folder whose parent exists."""
    if not folder.is_dir():
        folder.mkdir(exist_ok=True)
        sync_path(folder.parent)


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Convert errors of the disk.

    Raises:
        CannotRecord: a file of the journal cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise cannot_record(path, error) from error


def cannot_record(path: Path, error: OSError) -> CannotRecord:
    """Return the error of a journal that cannot be written."""
    text = (
        f"the journal cannot be written: got {type(error).__name__}: {error} in {path}; correct "
        "that, or free space there; a run that has ended goes on from the newest checkpoint when "
        "the same command is given again"
    )
    return with_cause(CannotRecord(text), error)
