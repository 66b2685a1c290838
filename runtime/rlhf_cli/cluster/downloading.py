"""Files of a job's folder onto this machine: whole or not at all.

Each is read in order, from where it stopped when a connection breaks, and written aside; what has
the size and version that the folder's list says is renamed into its place at the end.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rlhf_cli.cluster.client import CommandFailed, StreamBroken
from rlhf_cli.cluster.errors import ClusterUnreachable, OutputExists, TransferFailed
from rlhf_cli.cluster.run_files import RunFile, RunFiles

ASIDE = ".fetching"
"""The folder, in the output folder, in which files lie until they are whole."""
ATTEMPTS = 8
"""How often in a row a file may bring nothing new before it is given up."""


class Bar(Protocol):
    """Shows how much has arrived."""

    def begin(self, path: str, size: int) -> None:
        """A file of so many bytes is next."""

    def arrived(self, size: int) -> None:
        """So many bytes more of it are here."""


@dataclass(frozen=True)
class Part:
    """Something that is fetched: a file or a folder of the job's folder."""

    name: str
    """Its path there, and here."""
    grows: bool = False
    """Whether more may be added to it while it is read."""


def download(
    files: RunFiles,
    parts: Sequence[Part],
    output: Path,
    bar: Bar,
    *,
    replace: bool = False,
    pause: Callable[[float], None] = time.sleep,
) -> list[Path]:
    """Fetch those parts that there are; the files or folders that are here now.

    Args:
        output: the folder that they are put into.
        replace: whether what lies in their places goes.
        pause: waits so many seconds before another attempt.

    Raises:
        OutputExists: something lies in the place of a part.
        TransferFailed: a part did not arrive whole, or cannot be written.
    """
    found = {part: files.list([part.name]) for part in parts}
    there = [part for part in parts if found[part]]
    _require_free([output / part.name for part in there], replace)
    aside = output / ASIDE
    try:
        shutil.rmtree(aside, ignore_errors=True)  # what an earlier one left
        for part in there:
            for file in found[part]:
                _fetch(files, file, aside / file.path, bar, pause)
            _require_unchanged(files, part, found[part])
        return [_place(aside / part.name, output / part.name) for part in there]
    except OSError as error:
        raise TransferFailed(
            f"what is fetched cannot be written: got {error} in {output}; free space there, or "
            "give another --output"
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _require_free(places: Sequence[Path], replace: bool) -> None:
    taken = [str(place) for place in places if place.exists()]
    if taken and not replace:
        raise OutputExists(
            f"something lies there already: got {', '.join(taken)}; give another --output, or "
            "--force to replace it"
        )


def _fetch(
    files: RunFiles, file: RunFile, path: Path, bar: Bar, pause: Callable[[float], None]
) -> None:
    """Write a file's bytes; a broken connection is begun again where it broke."""
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
            except (StreamBroken, CommandFailed, ClusterUnreachable) as error:
                broken = str(error)
            failures = failures + 1 if offset == before else 0
            if failures >= ATTEMPTS:
                raise TransferFailed(
                    f"a file did not arrive whole: got {offset} of {file.size} bytes of "
                    f"{file.path} ({broken}); try again"
                )
            if offset < file.size:
                pause(min(2.0**failures, 30.0))
    if offset > file.size:
        raise TransferFailed(f"too much arrived of {file.path}: got {offset} of {file.size} bytes")


def _require_unchanged(files: RunFiles, part: Part, before: Sequence[RunFile]) -> None:
    after = {file.path: file for file in files.list([part.name])}
    for file in before:
        now = after.get(file.path)
        is_same = now is not None and (now.size >= file.size if part.grows else now == file)
        if not is_same:
            raise TransferFailed(
                f"a file changed while it was fetched: got {file.path}; try again when the job "
                "does not write it any more"
            )


def _place(aside: Path, place: Path) -> Path:
    """Rename into place; what was there goes aside, and comes back if that does not come about."""
    old = aside.with_name(f"{aside.name}.replaced")
    try:
        if place.exists():
            place.rename(old)
        aside.rename(place)
    except BaseException:  # an interruption, too
        if old.exists() and not place.exists():
            old.rename(place)
        raise
    return place
