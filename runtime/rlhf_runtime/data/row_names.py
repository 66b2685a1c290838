"""Names of rows in messages: the number in the source, or in one of its files."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path


class RowNames:
    """Names of the rows of a source, from 0; rows of several files count in their file.

    Whoever reads the files adds each of them at its first row.
    """

    def __init__(self) -> None:
        """Start without files; rows then count in the source."""
        self._starts: list[int] = []
        self._files: list[Path] = []

    def start_file(self, file: Path, row: int) -> None:
        """Add a file that begins with a row of the source."""
        self._files.append(file)
        self._starts.append(row)

    def name(self, row: int) -> str:
        """Return the name of a row."""
        if not self._files:
            return f"row {row}"
        index = max(0, bisect_right(self._starts, row) - 1)
        return f"row {row - self._starts[index]} of {self._files[index]}"

    def names(self, rows: Sequence[int]) -> str:
        """Return the names of several rows in one phrase."""
        if not self._files and len(rows) > 1:
            return f"rows {', '.join(map(str, rows))}"
        return ", ".join(map(self.name, rows))


# Position of a source's number in the number of a row. A single source has number 0, so that its
# rows have their own numbers.
SOURCE_BIT = 40


def joint_row(source: int, row: int) -> int:
    """Return the number of a source's row among the rows of several sources."""
    return source << SOURCE_BIT | row


def source_and_row(joint: int) -> tuple[int, int]:
    """Return the number of a row's source, and the row's number in it."""
    return joint >> SOURCE_BIT, joint & ((1 << SOURCE_BIT) - 1)


class JointRowNames(RowNames):
    """Names of the rows of several sources."""

    def __init__(self, names: Sequence[RowNames], sources: Sequence[str]) -> None:
        """Join the names of each source's rows with the sources' names."""
        super().__init__()
        self._names = tuple(names)
        self._sources = tuple(sources)

    def name(self, row: int) -> str:
        """Return the name of a row."""
        source, own = source_and_row(row)
        return f"{self._names[source].name(own)} of source {self._sources[source]}"

    def names(self, rows: Sequence[int]) -> str:
        """Return the names of several rows in one phrase."""
        return ", ".join(map(self.name, rows))
