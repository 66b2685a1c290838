"""Where a person finds rows of data: file and line. Reward hosts ask for rows without a score."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TextIO

from rlhf_api.spec.data import DataSource

LINES = (".jsonl", ".json")
"""Endings of files that hold a row in each line; one of .json may be a list instead."""
MARK_ROWS = 1024
"""Rows from one remembered position in a file to the next."""


class RowLocations:
    """Locations of rows in the sources of a job. What has been read of a file is not read again, so
    that a row of a large one is found at once. Threads may share it."""

    def __init__(self) -> None:
        self._files: dict[Path, LineIndex] = {}
        self._lock = threading.Lock()

    def find(self, source: DataSource, rows: Sequence[int]) -> list[str]:
        """File and line of each row; of a file without lines, and of other data, the row's number.

        Args:
            source: of the rows.
            rows: their numbers in it, from 0.
        """
        if source.path is None:
            name = source.hugging_face or (source.builtin and source.builtin.value)
            split = f", split {source.split}" if source.split else ""
            return [f"{name}{split}, row {row}, counted from 0" for row in rows]
        file = Path(os.path.expanduser(source.path))
        lines = self._lines(file, rows) if file.suffix in LINES else {}
        return [
            f"{file}, " + (f"line {lines[row]}" if row in lines else f"row {row}, counted from 0")
            for row in rows
        ]

    def _lines(self, file: Path, rows: Iterable[int]) -> dict[int, int]:
        with self._lock:
            return self._files.setdefault(file, LineIndex(file)).find(rows)


class LineIndex:
    """The lines of a file's rows: rows are the lines that are not blank."""

    def __init__(self, file: Path) -> None:
        """Reads nothing yet."""
        self._file = file
        self._marks = [_Mark(1, 0)]
        """Where every MARK_ROWS-th row is looked for, as far as the file has been read."""

    def find(self, rows: Iterable[int]) -> dict[int, int]:
        """The line, from 1, of each row, from 0; those without one are left out."""
        found: dict[int, int] = {}
        try:
            with self._file.open(encoding="utf-8") as stream:
                if _is_list(stream):
                    return {}
                for row in sorted(set(rows)):
                    line = self._line_of(stream, row)
                    if line is None:
                        break
                    found[row] = line
        except (OSError, UnicodeDecodeError):
            pass  # the row's number does as well
        return found

    def _line_of(self, stream: TextIO, row: int) -> int | None:
        """Reads on from the last mark before the row, and sets those on the way."""
        last = min(row // MARK_ROWS, len(self._marks) - 1)
        line, position = self._marks[last]
        before = last * MARK_ROWS
        stream.seek(position)
        while text := stream.readline():
            if text.strip():
                if before == row:
                    return line
                before += 1
                if before == len(self._marks) * MARK_ROWS:
                    self._marks.append(_Mark(line + 1, stream.tell()))
            line += 1
        return None


class _Mark(NamedTuple):
    """A position between two lines."""

    line: int
    """The line that begins there, from 1."""
    position: int
    """As the file's `tell` has it."""


def _is_list(stream: TextIO) -> bool:
    """Whether a file is one list of rows, and does not have them in its lines."""
    first = stream.read(1)
    while first.isspace():
        first = stream.read(1)
    return first == "["
