"""A small file system, mounted where only some processes see it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

AS_ROOT = os.geteuid() == 0
UNSHARE = ["unshare", "--mount"] if AS_ROOT else ["unshare", "--mount", "--user", "--map-root-user"]
ENTER = ["--mount"] if AS_ROOT else ["--mount", "--user", "--preserve-credentials"]

FILLER = "filler"


@dataclass(frozen=True)
class SmallDisk:
    """A mounted folder."""

    folder: Path
    inside: tuple[str, ...]
    """Words before a command that sees the folder."""
    root: Path
    """Root of the other mount namespace, for this process."""

    @property
    def seen(self) -> Path:
        """Path of the folder for this process."""
        return self.root / self.folder.relative_to("/")

    def resize(self, mebibytes: int) -> None:
        """Change the size."""
        words = ["mount", "-o", f"remount,size={mebibytes}m", str(self.folder)]
        subprocess.run([*self.inside, *words], check=True)

    def fill(self) -> bool:
        """Fill all free space; returns True."""
        with (self.seen / FILLER).open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(1 << 12))
            except OSError:
                return True

    def empty(self) -> None:
        """Free the space that `fill` took."""
        (self.seen / FILLER).unlink()


@contextmanager
def small_disk(folder: Path, mebibytes: int) -> Iterator[SmallDisk]:
    """Mount a small disk for processes that are started inside."""
    folder.mkdir()
    script = 'mount -t tmpfs -o size="$1"m tmpfs "$2" && echo mounted && read -r _'
    holder = subprocess.Popen(
        [*UNSHARE, "sh", "-c", script, "sh", str(mebibytes), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdin is not None and holder.stdout is not None
    try:
        assert holder.stdout.readline() == "mounted\n", "mounting needs root or user namespaces"
        inside = ("nsenter", "--target", str(holder.pid), *ENTER, f"--wd={folder.parent}")
        yield SmallDisk(folder, inside, Path("/proc", str(holder.pid), "root"))
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait()
