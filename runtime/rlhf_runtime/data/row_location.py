"""Locates rows of data by file and line, for messages about rows without a score."""

from __future__ import annotations

import os.path
import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple, TextIO

from rlhf_api.errors import RlhfError
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.file_paths import find_files
from rlhf_runtime.data.files import count_rows
from rlhf_runtime.data.saved_dataset import is_saved_dataset

# Suffixes of files with one row per line; a .json file may be a list instead.
LINES = (".jsonl", ".json")
# Distance between two marks of an index, in rows.
MARK_ROWS = 1024


class RowLocations:
    """Locations of rows in the sources of a job. Thread-safe.

    Each file is indexed while it is read, and read only once.
    """

    def __init__(self) -> None:
        self._indexes: dict[Path, LineIndex] = {}
        self._starts: dict[tuple[str, ...], list[tuple[Path, int]]] = {}
        self._lock = threading.Lock()

    def find(self, source: DataSource, rows: Sequence[int]) -> list[str]:
        """Return file and line of each row; without lines the row's number.

        Args:
            source: of the rows.
            rows: their numbers in it, from 0.
        """
        paths = tuple(source.named_paths.values())
        if not paths or any(map(is_saved_dataset, paths)):
            return [row_in_source(source, row) for row in rows]
        with self._lock:
            starts = self._starts.get(paths) or _starts(paths)
            self._starts[paths] = starts
            at = [_row_in_file(starts, row) for row in rows]
            lines = {file: self._lines(file, [row for _, row in at]) for file, _ in at}
        return [
            f"{file}, "
            + (f"line {lines[file][row]}" if row in lines[file] else f"row {row}, counted from 0")
            for file, row in at
        ]

    def _lines(self, file: Path, rows: Iterable[int]) -> dict[int, int]:
        if file.suffix not in LINES:
            return {}
        return self._indexes.setdefault(file, LineIndex(file)).find(rows)


def row_in_source(source: DataSource, row: int) -> str:
    """Return source and number of a row, without a look into files."""
    split = f", split {source.split}" if source.split else ""
    return f"{_source_name(source)}{split}, row {row}, counted from 0"


def _source_name(source: DataSource) -> str:
    """Return the name of a source without files that a user can open."""
    if source.builtin is not None:
        return source.builtin.value
    if source.reasoning_gym is not None:
        return f"reasoning_gym {source.reasoning_gym.dataset}"
    return ", ".join(source.named_paths.values()) or str(source.hugging_face)


def _starts(paths: Sequence[str]) -> list[tuple[Path, int]]:
    """Return the files of paths, each with the number of its first row."""
    whole = [(Path(os.path.expanduser(", ".join(paths))), 0)]
    try:
        files = [file for path in paths for file in find_files(path, "")]
        counts = [count_rows(file) for file in files[:-1]]
    except (RlhfError, OSError):
        return whole  # messages then give the source's row
    return list(zip(files, accumulate(counts, initial=0), strict=True))


def _row_in_file(starts: Sequence[tuple[Path, int]], row: int) -> tuple[Path, int]:
    """Return the file of a source's row, and the row's number in it."""
    file, start = next((file, start) for file, start in reversed(starts) if start <= row)
    return file, row - start


class LineIndex:
    """Index from rows to lines of a file; blank lines are no rows."""

    def __init__(self, file: Path) -> None:
        """Start an empty index; reads nothing."""
        self._file = file
        # Position of every MARK_ROWS-th row, as far as the file has been read.
        self._marks = [_Mark(1, 0)]

    def find(self, rows: Iterable[int]) -> dict[int, int]:
        """Return the line, from 1, of each row, from 0; rows beyond the end are left out."""
        lines: dict[int, int] = {}
        try:
            with self._file.open(encoding="utf-8") as stream:
                if _is_list(stream):
                    return {}
                # In order, so that each search continues where the last one ended.
                for row in sorted(set(rows)):
                    line = self._line_of(stream, row)
                    if line is None:
                        break
                    lines[row] = line
        except (OSError, UnicodeDecodeError):
            pass  # messages then give the row's number
        return lines

    def _line_of(self, stream: TextIO, row: int) -> int | None:
        """Read on from the last mark before the row, and add marks on the way."""
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
                    # `readline`, not iteration: iterating disables `tell`.
                    self._marks.append(_Mark(line + 1, stream.tell()))
            line += 1
        return None


class _Mark(NamedTuple):
    """A position between two lines."""

    line: int
    """The line that begins there, from 1."""
    position: int
    """Position in the file, from `tell`."""


def _is_list(stream: TextIO) -> bool:
    """True if a file is one list of rows instead of one row per line."""
    first = stream.read(1)
    while first.isspace():
        first = stream.read(1)
    return first == "["
