"""Fill a folder beside its target, and move it there once it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_runtime.controller.run_lock import LOCK, lock_folder
from rlhf_runtime.errors import CannotExport, FolderInUse, FolderUnusable, ModelNotSaved

# Folders are named .NAME. + this prefix + 8 hex digits.
NEW, REPLACED = "rlhf-new-", "rlhf-replaced-"
LAST = "config.json"
"""A folder with this file counts as a model, so it is moved last."""


@contextmanager
def staging_folder(output: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `output` if the block ends without an error.

    Raises:
        CannotExport: the folder cannot be created.
        ModelNotSaved: `output` cannot be replaced; its earlier content is kept.
    """
    try:
        parent = _staging_parent(output)
        parent.mkdir(parents=True, exist_ok=True)
        staging = _new_folder(output, parent, NEW)
    except OSError as error:
        raise _unusable(output, error) from error
    try:
        # The lock tells `recover` in another process that this one is alive.
        with lock_folder(staging):
            yield staging
            try:
                _replace(staging, output)
            except OSError as error:
                raise write_error(output, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def recover(output: Path) -> None:
    """Clean up after killed exports: remove their folders, and restore what they were replacing.

    Raises:
        CannotExport: another export runs, or a file system error.
    """
    try:
        for leftover in _leftovers(output, NEW):
            # A folder whose lock is free belongs to a killed process.
            with lock_folder(leftover):
                shutil.rmtree(leftover)
        for leftover in _leftovers(output, REPLACED):
            # If the process was killed before the new model was in place, the old one returns.
            if output.exists():
                shutil.rmtree(leftover)
            else:
                leftover.rename(output)
    except FolderInUse as error:
        raise CannotExport(f"another export writes there: got {output}; wait for it") from error
    except (OSError, FolderUnusable) as error:
        raise _unusable(output, error) from error


def write_error(output: Path, error: Exception) -> ModelNotSaved:
    """The error of a folder that could not be written or moved."""
    return ModelNotSaved(
        f"the model could not be written: got {type(error).__name__}: {error} for {output}; check "
        "that folder and its disk, then give the same command again"
    )


def _unusable(output: Path, error: Exception) -> CannotExport:
    return CannotExport(
        f"the model cannot be put there: got {output} ({error}); choose another folder"
    )


def _staging_parent(output: Path) -> Path:
    """The folder that contains the staging folder, on the same disk as `output`."""
    # A rename within one disk is atomic; a copy from another disk could stop halfway.
    return output if output.is_mount() else output.parent


def _leftovers(output: Path, kind: str) -> list[Path]:
    parent = _staging_parent(output)
    entries = parent.iterdir() if parent.is_dir() else ()
    return [entry for entry in entries if entry.name.startswith(_prefix(output, kind))]


def _prefix(output: Path, kind: str) -> str:
    return f".{output.name}.{kind}"


def _new_folder(output: Path, parent: Path, kind: str) -> Path:
    """Create a folder of unique name with default permissions."""
    folder = parent / f"{_prefix(output, kind)}{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    return folder


def _replace(staging: Path, output: Path) -> None:
    """Replace `output` by the staging folder."""
    if output.is_mount():
        _fill_mount(staging, output)
        return
    replaced = None
    if output.is_dir() and any(output.iterdir()):
        replaced = _new_folder(output, output.parent, REPLACED)
        output.rename(replaced)
    try:
        staging.rename(output)  # this also replaces an empty folder
    except OSError:
        if replaced is not None:
            replaced.rename(output)
        raise
    # The lock has moved with the folder, and is no part of the model.
    (output / LOCK).unlink()
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def _fill_mount(staging: Path, output: Path) -> None:
    """Move all files into a mount point, which cannot be renamed."""
    for old in list(output.iterdir()):
        # lost+found belongs to the file system.
        if old != staging and old.name != "lost+found":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    names = [entry for entry in os.listdir(staging) if entry != LOCK]
    for name in sorted(names, key=lambda name: name == LAST):
        (staging / name).rename(output / name)
