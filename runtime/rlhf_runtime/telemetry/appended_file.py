"""A file that only grows, by whole pieces."""

from __future__ import annotations

import threading
from pathlib import Path


class FileLost(OSError):
    """The file to append to was deleted or replaced."""


class AppendedFile:
    """Appends pieces to a file: each is on the disk at once and completely, or not at all."""

    # Every write opens the file: data written through an open handle of a deleted or replaced file
    # would be lost without an error.

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()  # one thread may check while another writes
        with path.open("ab") as file:
            # Size of the file after the last complete piece.
            self._end = file.tell()
        # False while a write is in progress.
        self._knows_size = True

    def write(self, piece: bytes) -> None:
        """Append a piece.

        Raises:
            FileLost: the file was deleted or replaced.
            OSError: the disk is full.
        """
        with self._lock:
            self._append(memoryview(piece))

    def _append(self, rest: memoryview) -> None:
        self.require_unchanged()
        self._knows_size = False  # until the complete piece is on the disk, or nothing of it
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self._end)
            try:
                while rest:  # a nearly full disk may write a part
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._end)
                self._knows_size = True
                raise
            end = file.tell()
        self._end, self._knows_size = end, True

    def require_unchanged(self) -> None:
        """Check that the file is unchanged since the last write.

        Raises:
            FileLost: it was deleted, or replaced by one of another size.
        """
        with self._lock:
            self._compare_size()

    def _compare_size(self) -> None:
        try:
            size = self.path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            missing = self.path if self.path.parent.is_dir() else self.path.parent
            raise FileLost(f"no {missing.absolute()} any more") from None
        except OSError:
            return  # a network error may pass; if not, the next write fails
        if self._knows_size and size != self._end:
            raise FileLost(
                f"another {self.path.absolute()}, of {size} bytes instead of {self._end}"
            )
