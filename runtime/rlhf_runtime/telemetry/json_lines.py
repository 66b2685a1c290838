"""Files of one JSON object per line that survive being cut off at any byte."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class FileGone(OSError):
    """What is appended to is not there any more, or something else is in its place."""


class JsonLinesWriter:
    """Appends objects, each on disk at once; removes the cut-off last line of an earlier writer.

    The file is opened for each: what is written through an open file whose name somebody has
    deleted, or given to another, would be lost without a word.
    """

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self.path = path
        self._lock = threading.RLock()  # one thread may look while another writes
        with path.open("ab") as file:
            self._end = file.tell()
        self._knows_size = True

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one object, or nothing of it.

        Raises:
            FileGone: the file was deleted, or another one is in its place.
            OSError: the disk is full.
        """
        text = json.dumps(line, allow_nan=False, separators=(", ", ": "))
        rest = memoryview(text.encode() + b"\n")
        with self._lock:
            self._append(rest)

    def _append(self, rest: memoryview) -> None:
        self.require_own()
        self._knows_size = False  # until all of it is on the disk, or none
        with self.path.open("r+b", buffering=0) as file:
            file.seek(self._end)
            try:
                while rest:  # a nearly full disk takes a part
                    rest = rest[file.write(rest) :]
            except OSError:
                file.truncate(self._end)
                self._knows_size = True
                raise
            end = file.tell()
        self._end, self._knows_size = end, True

    def require_own(self) -> None:
        """Find out whether the file is still the one that was written.

        Raises:
            FileGone: it was deleted, or one of another size is in its place.
        """
        with self._lock:
            self._compare_size()

    def _compare_size(self) -> None:
        try:
            size = self.path.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            missing = self.path if self.path.parent.is_dir() else self.path.parent
            raise FileGone(f"no {missing.absolute()} any more") from None
        except OSError:
            return  # a network's trouble may pass; if not, writing tells
        if self._knows_size and size != self._end:
            raise FileGone(
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
    """The object on a line, or None where it is damaged."""
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
