"""A folder that is filled beside its place and put there once it is complete."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlhf_runtime.controller.run_lock import LOCK, lock_folder
from rlhf_runtime.errors import CannotExport, FolderInUse, FolderUnusable, ModelNotSaved

NEW, REPLACED = "rlhf-new-", "rlhf-replaced-"
"""What names of folders beside the place begin with, after a dot and the place's own name."""
LAST = "config.json"
"""The file that makes a folder a model: it is moved last."""


@contextmanager
def staged(output: Path) -> Iterator[Path]:
    """A folder of its own that takes the place of `output` when the block ends without an error,
    and else goes.

    Raises:
        CannotExport: it cannot be made.
        ModelNotSaved: it cannot be put there; what was there is there still.
    """
    try:
        place = _place_of(output)
        place.mkdir(parents=True, exist_ok=True)
        staging = _new_folder(output, place, NEW)
    except OSError as error:
        raise _unusable(output, error) from error
    try:
        with lock_folder(staging):
            yield staging
            try:
                _put(staging, output)
            except OSError as error:
                raise not_written(output, error) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def recover(output: Path) -> None:
    """Remove what killed processes have begun to put there, and put back what they were replacing.

    Raises:
        CannotExport: one of them is alive, or it cannot be done.
    """
    try:
        for left in _left(output, NEW):
            with lock_folder(left):
                shutil.rmtree(left)
        for left in _left(output, REPLACED):
            if output.exists():
                shutil.rmtree(left)
            else:
                left.rename(output)
    except FolderInUse as error:
        raise CannotExport(f"another export writes there: got {output}; wait for it") from error
    except (OSError, FolderUnusable) as error:
        raise _unusable(output, error) from error


def not_written(output: Path, error: Exception) -> ModelNotSaved:
    """The error of a folder that could not be written or put into its place."""
    return ModelNotSaved(
        f"the model could not be written: got {type(error).__name__}: {error} for {output}; see to "
        "that folder and its disk, then give the same command again"
    )


def _unusable(output: Path, error: Exception) -> CannotExport:
    return CannotExport(
        f"the model cannot be put there: got {output} ({error}); choose another folder"
    )


def _place_of(output: Path) -> Path:
    """Where it is filled: on the disk that it will be on."""
    return output if output.is_mount() else output.parent


def _left(output: Path, kind: str) -> list[Path]:
    place = _place_of(output)
    entries = place.iterdir() if place.is_dir() else ()
    return [each for each in entries if each.name.startswith(_prefix(output, kind))]


def _prefix(output: Path, kind: str) -> str:
    return f".{output.name}.{kind}"


def _new_folder(output: Path, place: Path, kind: str) -> Path:
    """An empty folder that no other process has, with the rights that any new one gets."""
    folder = place / f"{_prefix(output, kind)}{uuid.uuid4().hex[:8]}"
    folder.mkdir()
    return folder


def _put(staging: Path, output: Path) -> None:
    """Let a complete folder take the place of another."""
    if output.is_mount():
        _fill(staging, output)
        return
    replaced = None
    if output.is_dir() and any(output.iterdir()):
        replaced = _new_folder(output, output.parent, REPLACED)
        output.rename(replaced)
    try:
        staging.rename(output)  # an empty folder gives way to it
    except OSError:
        if replaced is not None:
            replaced.rename(output)
        raise
    (output / LOCK).unlink()
    if replaced is not None:
        shutil.rmtree(replaced, ignore_errors=True)


def _fill(staging: Path, output: Path) -> None:
    """Move all files into a place that cannot be renamed: a mount."""
    for old in list(output.iterdir()):
        if old != staging and old.name != "lost+found":
            shutil.rmtree(old) if old.is_dir() and not old.is_symlink() else old.unlink()
    names = [entry for entry in os.listdir(staging) if entry != LOCK]
    for name in sorted(names, key=lambda each: each == LAST):
        (staging / name).rename(output / name)
