"""Manifest and files of an earlier run or evaluation in a folder."""

from __future__ import annotations

import sys
from collections.abc import Collection
from itertools import count
from pathlib import Path

from rlhf_api.errors import ManifestError
from rlhf_api.reading.manifest import load_jobs
from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.controller.run_lock import LOCK
from rlhf_runtime.errors import FolderUnusable
from rlhf_runtime.telemetry.run_folder import RunFolder


def read_job(folder: RunFolder) -> RLHFJob | None:
    """Return the job of the last start in a folder; None without one, or of another version."""
    text = folder.read_manifest()
    if text is None:
        return None
    try:
        (job,) = load_jobs(text, str(folder.manifest), is_generated=True)
    except ManifestError:
        return None
    return job


def put_aside(folder: RunFolder, kind: str) -> None:
    """Move the files of a folder to a new folder beside it, and say so.

    Args:
        folder: of a run or an evaluation; locked by this process.
        kind: "run" or "evaluation", for messages.

    Raises:
        FolderUnusable: they cannot be moved.
    """
    aside = _free_name(folder.path)
    # The lock stays, because this process holds it.
    move_files(folder.path, aside, {LOCK}, kind)
    sys.stderr.write(f"the earlier {kind} was put aside: {aside}\n")


def move_files(folder: Path, aside: Path, kept: Collection[str], kind: str) -> None:
    """Move the entries of a folder, except for some names, to another one on the same disk.

    Args:
        aside: is created; it may have the files that an interrupted move has put there.
        kind: "run" or "evaluation", for messages.

    Raises:
        FolderUnusable: they cannot be moved.
    """
    try:
        aside.mkdir(parents=True, exist_ok=True)
        for entry in sorted(folder.iterdir()):
            if entry.name not in kept:
                entry.rename(aside / entry.name)
    except OSError as error:
        raise FolderUnusable(
            f"the earlier {kind} cannot be put aside: got {error}; correct the permissions, or "
            "choose another folder"
        ) from error


def _free_name(path: Path) -> Path:
    names = (path.with_name(f"{path.name}.{number}") for number in count(1))
    return next(name for name in names if not name.exists())
