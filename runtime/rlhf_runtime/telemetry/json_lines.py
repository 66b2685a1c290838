"""Files of one JSON object per line that survive being cut off at any byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from os import SEEK_END
from pathlib import Path
from typing import Any


class JsonLinesWriter:
    """Appends objects, each flushed at once; removes the cut-off last line of an earlier writer."""

    def __init__(self, path: Path) -> None:
        _drop_partial_line(path)
        self._file = path.open("ab", buffering=0)

    def write(self, line: Mapping[str, Any]) -> None:
        """Append one object, or nothing of it.

        Raises:
            OSError: the disk is full.
        """
        text = json.dumps(line, allow_nan=False, separators=(", ", ": "))
        rest = memoryview(text.encode() + b"\n")
        end = self._file.seek(0, SEEK_END)
        try:
            while rest:  # a nearly full disk takes a part
                rest = rest[self._file.write(rest) :]
        except OSError:
            self._file.truncate(end)
            raise

    def close(self) -> None:
        """Close the file; writing afterwards is an error."""
        self._file.close()


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
