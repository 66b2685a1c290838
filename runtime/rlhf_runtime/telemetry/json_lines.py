"""Files of one JSON object per line that survive being cut off at any byte."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class FileLost(OSError):
    """The file to append to was deleted or replaced."""


class JsonLinesWriter:
    """Appends objects, each on disk at once; removes the cut-off last line of an earlier writer."""

    # Every write opens the file: data written through an open handle of a deleted or replaced file
    # would be lost without an error.

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self.path = path
        self._lock = threading.RLock()  # one thread may check while another writes
        with path.open("ab") as file:
            self._end = file.tell()
        self._knows_size = True

    def write(self, line: Mapping[str, Any]) -> None:
        """Append an object completely or not at all.

        Raises:
            FileLost: the file was deleted or replaced.
            OSError: the disk is full.
        """
        text = json.dumps(line, allow_nan=False, separators=(", ", ": "))
        rest = memoryview(text.encode() + b"\n")
        with self._lock:
            self._append(rest)

    def _append(self, rest: memoryview) -> None:
        self.require_unchanged()
        self._knows_size = False  # until the complete line is on the disk, or nothing of it
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


def read_lines(path: Path) -> Iterator[bytes]:
    """The non-empty lines of a file; none if there is no such file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line


def parse_line(line: bytes) -> dict[str, Any] | None:
    """The object of a line. None: it is damaged."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _drop_partial_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("rb+") as file:
        end = file.seek(0, 2)
        position = end
        while position > 0:
            start = max(0, position - 65536)
            file.seek(start)
            newline = file.read(position - start).rfind(b"\n")
            if newline >= 0:
                file.truncate(start + newline + 1)
                return
            position = start
        file.truncate(0)
