"""Copy files of a job's folder to this machine, each complete or not at all.

A file is read in order; after a broken connection it continues at the same offset. Files are
written to a temporary folder, and renamed once all have the size and version of the listing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf_cli.cluster.errors import OutputExists, TransferFailed
from rlhf_cli.cluster.run_files import RunFile, RunFiles
from rlhf_kube.errors import CommandFailed, StreamBroken, Unreachable

ASIDE = ".fetching"
"""Temporary folder inside the output folder."""
ATTEMPTS = 8
"""Maximum consecutive reads of a file without new bytes."""


class Bar(Protocol):
    """Shows the progress of a transfer."""

    def begin(self, path: str, size: int) -> None:
        """Start the next file, of `size` bytes."""

    def arrived(self, size: int) -> None:
        """Add bytes of that file."""


@dataclass(frozen=True)
class FetchItem:
    """A file or folder of the job's folder."""

    name: str
    """Its path, relative to the job's folder and to the output folder."""
    grows: bool = False
    """True if the job may append to it during the transfer."""


def download(
    files: RunFiles,
    items: Sequence[FetchItem],
    output: Path,
    bar: Bar,
    *,
    replace: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Fetch the items that exist; return their paths on this machine.

    Args:
        output: the folder that receives them.
        replace: replace files that exist there.
        pause: sleeps so many seconds before a retry.

    Raises:
        OutputExists: an item exists already and `replace` is false.
        TransferFailed: an item did not arrive complete, or cannot be written.
    """
    # Missing items are no error: a run that still trains has no model yet.
    listings = {item: files.list([item.name]) for item in items}
    existing = [item for item in items if listings[item]]
    _require_free([output / item.name for item in existing], replace)
    aside = output / ASIDE
    try:
        shutil.rmtree(aside, ignore_errors=True)  # left by a killed command
        for item in existing:
            for file in listings[item]:
                _fetch(files, file, aside / file.path, bar, pause)
            # A model of two versions would load without an error, and compute nonsense.
            _require_unchanged(files, item, listings[item])
        return [_install(aside / item.name, output / item.name) for item in existing]
    except OSError as error:
        raise TransferFailed(
            f"the fetched files cannot be written: got {error} in {output}; free space there, or "
            "give another --output"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _require_free(paths: Sequence[Path], replace: bool) -> None:
    existing = [str(path) for path in paths if path.exists()]
    if existing and not replace:
        raise OutputExists(
            f"the output exists already: got {', '.join(existing)}; give another --output, or "
            "--force to replace it"
        )


def _fetch(
    files: RunFiles, file: RunFile, path: Path, bar: Bar, pause: Callable[[float], None]
) -> None:
    """Copy a file; resume where a connection broke."""
    path.parent.mkdir(parents=True, exist_ok=True)
    bar.begin(file.path, file.size)
    offset = failures = 0
    with path.open("wb") as out:
        while offset < file.size:
            before, broken = offset, "it ends there"
            try:
                for piece in files.read(file.path, offset, file.size - offset):
                    out.write(piece)
                    offset += len(piece)
                    bar.arrived(len(piece))
            except (StreamBroken, CommandFailed, Unreachable) as error:
                broken = str(error)
            # Any progress resets the count: a large file may break many connections.
            failures = failures + 1 if offset == before else 0
            if failures >= ATTEMPTS:
                raise TransferFailed(
                    f"a file did not arrive complete: got {offset} of {file.size} bytes of "
                    f"{file.path} ({broken}); try again"
                )
            if offset < file.size:
                pause(min(2.0**failures, 30.0))
    if offset > file.size:
        raise TransferFailed(
            f"more bytes arrived than {file.path} has: got {offset} of {file.size} bytes"
        )


def _require_unchanged(files: RunFiles, item: FetchItem, before: Sequence[RunFile]) -> None:
    after = {file.path: file for file in files.list([item.name])}
    for file in before:
        now = after.get(file.path)
        is_same = now is not None and (now.size >= file.size if item.grows else now == file)
        if not is_same:
            raise TransferFailed(
                f"a file changed while it was fetched: got {file.path}; try again when the job "
                "no longer writes it"
            )


def _install(aside: Path, target: Path) -> Path:
    """Rename into place; restore the previous file or folder if that fails."""
    # Two renames: a folder that is not empty cannot be replaced in one.
    old = aside.with_name(f"{aside.name}.replaced")
    try:
        if target.exists():
            target.rename(old)
        aside.rename(target)
    except BaseException:  # an interruption, too
        if old.exists() and not target.exists():
            old.rename(target)
        raise
    return target
