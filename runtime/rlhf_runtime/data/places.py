"""Where a person finds a row of data."""

from __future__ import annotations

from pathlib import Path

from rlhf_api.spec.data import DataSource

LINES = (".jsonl", ".json")
"""Endings of files that hold a row in each line; one of .json may be a list instead."""


def place_of(source: DataSource, row: int) -> str:
    """A row's file and line; of a file without lines, and of other data, the row's number.

    Args:
        source: of the row.
        row: its number in it, from 0.
    """
    if source.path is not None:
        file = Path(source.path).expanduser()
        line = _line_of(file, row) if file.suffix in LINES else None
        return f"{file}, " + (f"line {line}" if line else f"row {row}, counted from 0")
    name = source.hugging_face or (source.builtin and source.builtin.value)
    split = f", split {source.split}" if source.split else ""
    return f"{name}{split}, row {row}, counted from 0"


def _line_of(file: Path, row: int) -> int | None:
    """The line of a row, from 1: rows are the lines that are not blank. None: it has none."""
    try:
        with file.open(encoding="utf-8") as stream:
            filled = (number for number, line in enumerate(stream, start=1) if line.strip())
            for before, number in enumerate(filled):
                if before == row:
                    return number if _holds_rows(file) else None
    except (OSError, UnicodeDecodeError):
        pass  # the row's number does as well
    return None


def _holds_rows(file: Path) -> bool:
    """Whether a file has rows in its lines, and is not one list of them."""
    with file.open(encoding="utf-8") as stream:
        return not next(filter(str.strip, stream), "").lstrip().startswith("[")
