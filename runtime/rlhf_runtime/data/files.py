"""Rows of local .parquet, .jsonl and .json files; of several files one after the other."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rlhf_runtime.data.errors import DataUnreadable, EmptyDataset
from rlhf_runtime.data.file_paths import PARQUET, find_files
from rlhf_runtime.unreadable_files import unreadable_as

Row = Mapping[str, Any]

# Lines after an invalid line of JSON that are checked, too.
CHECKED_LINES = 1024
# Maximum of further invalid lines that a message names.
MAX_NAMED_LINES = 5
# Errors of `_parse`; also for too deep nesting.
_NOT_JSON = (ValueError, RecursionError)
PARQUET_BATCH_ROWS = 1024
# Bytes of a column that are read at once. Without a limit pyarrow reads all of a row group's
# column, which may be the complete file.
PARQUET_BUFFER_BYTES = 1 << 20


def find_filled_files(path: str, setting: str) -> list[Path]:
    """Find the files that a path names, as `find_files` does, and check that each has contents.

    Raises:
        DataNotFound: no such file.
        EmptyDataset: a file has no bytes.
        DataUnreadable: unknown suffix, or no permission.
    """
    files = find_files(path, setting)
    for file in files:
        with unreadable_as(DataUnreadable, setting, file):
            num_bytes = file.stat().st_size
        # An empty file would otherwise be an unreadable parquet file, or no rows without a reason.
        if num_bytes == 0:
            raise EmptyDataset(
                f"{setting} is an empty file: got {file} with 0 bytes; fill it with rows"
            )
    return files


def read_file(file: Path, setting: str) -> Iterator[Row]:
    """Read the rows of a file.

    Its format is that of its suffix. A .json file holds either a list of objects or one object per
    line, as .jsonl does.

    Args:
        file: with a known suffix.
        setting: the manifest's field with the path, for messages.

    Raises:
        DataUnreadable: contents of another format, or no permission.
    """
    with unreadable_as(DataUnreadable, setting, file):
        yield from _READERS[file.suffix](file)


def count_rows(file: Path) -> int:
    """Count the rows of a file.

    Raises:
        DataUnreadable: contents of another format.
        OSError: it cannot be read.
    """
    if file.suffix != PARQUET:
        return sum(1 for _ in _READERS[file.suffix](file))
    with _parquet(file) as table:
        return int(table.metadata.num_rows)


def columns_of(file: Path, setting: str, num_rows: int) -> list[str]:
    """Return the columns of a file: those of its schema, or of its first rows.

    Args:
        file: the file.
        setting: the manifest's field with the path, for messages.
        num_rows: number of rows, if the file has no schema.

    Raises:
        DataUnreadable: contents of another format, or no permission.
    """
    with unreadable_as(DataUnreadable, setting, file):
        if file.suffix == PARQUET:
            with _parquet(file) as table:
                return list(table.schema_arrow.names)
        rows = islice(_READERS[file.suffix](file), num_rows)
        return list(dict.fromkeys(column for row in rows for column in row))


def has_large_first_row(path: str, setting: str, num_bytes: int) -> bool:
    """True if more than a number of bytes must be in memory before the first row of a file is read.

    For other arguments and errors see `find_files`.
    """
    # A list of objects is parsed in one piece, and so is a line.
    for file in find_files(path, setting):
        with unreadable_as(DataUnreadable, setting, file):
            is_larger = file.suffix != PARQUET and file.stat().st_size > num_bytes
            if is_larger and _starts_with_large_value(file, num_bytes):
                return True
    return False


def _starts_with_large_value(file: Path, num_bytes: int) -> bool:
    """True if a file is a list, or its first line has more than a number of bytes."""
    with file.open("rb") as stream:
        if stream.read(len(BOM_UTF8)) != BOM_UTF8:
            stream.seek(0)
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        return first == b"[" or len(stream.readline(num_bytes)) == num_bytes


def _read_parquet(file: Path) -> Iterator[Row]:
    with _parquet(file) as table:
        for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS):
            yield from rows_of_batch(batch)


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    """Open a parquet file.

    Raises:
        DataUnreadable: it is none, or the body cannot read it.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(
            file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False
        ) as table:
            yield table
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise DataUnreadable(
            f"not a readable parquet file: got {file}: {error}; write it again"
        ) from error


def rows_of_batch(batch: Any) -> Iterator[Row]:
    """Yield the rows of a record batch. Maps become dicts."""
    import pyarrow

    # As Python's floats, 0.1 of a float32 column would be 0.10000000149011612.
    types = (pyarrow.float16(), pyarrow.float32())
    narrow = [field.name for field in batch.schema if field.type in types]
    for row in batch.to_pylist(maps_as_pydicts="lossy"):
        for name in narrow:
            if row[name] is not None:
                row[name] = float(str(np.float32(row[name])))
        yield row


def _read_json(file: Path) -> Iterator[Row]:
    with file.open(encoding="utf-8-sig") as stream:  # editors write a byte order mark
        try:
            first = stream.read(1)
            while first.isspace():
                first = stream.read(1)
            stream.seek(0)
            # A list of objects starts with `[`; otherwise each line is an object.
            rows = _json_array(stream, file) if first == "[" else _json_lines(stream, file)
            yield from rows
        except UnicodeDecodeError as error:
            raise DataUnreadable(
                f"not UTF-8 text: got {file}: {error}; write the file again in UTF-8"
            ) from error


def _json_array(stream: TextIO, file: Path) -> Iterator[Row]:
    try:
        values = _parse(stream.read())
    except UnicodeDecodeError:
        raise
    except _NOT_JSON as error:
        raise DataUnreadable(f"not valid JSON: got {file}: {error}; correct the file") from error
    for index, value in enumerate(values):
        yield _as_object(value, file, f"entry {index}")


def _json_lines(stream: TextIO, file: Path) -> Iterator[Row]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            value = _parse(line)
        except _NOT_JSON as error:
            raise DataUnreadable(
                f"not valid JSON: got {file}, line {number}: {error}"
                f"{_invalid_lines(stream, number)}; correct or remove the invalid lines"
            ) from error
        yield _as_object(value, file, f"line {number}")


def _invalid_lines(following: Iterable[str], number: int) -> str:
    """List the invalid lines among those that follow line `number`."""
    lines = enumerate(islice(following, CHECKED_LINES), start=number + 1)
    invalid = [f"{index:,}" for index, line in lines if line.strip() and not _is_json(line)]
    if not invalid:
        return ""
    num_more = len(invalid) - MAX_NAMED_LINES
    more = f" and {num_more:,} more" if num_more > 0 else ""
    named = ", ".join(invalid[:MAX_NAMED_LINES])
    return f" (of the next {CHECKED_LINES:,} lines also {named}{more})"


def _is_json(text: str) -> bool:
    try:
        _parse(text)
    except _NOT_JSON:
        return False
    return True


def _parse(text: str) -> Any:
    """Parse JSON. An integer of more digits than Python converts stays a text."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        raise
    except ValueError:
        return json.loads(text, parse_int=_int_or_text)


def _int_or_text(digits: str) -> int | str:
    try:
        return int(digits)
    except ValueError:
        return digits


def _as_object(value: Any, file: Path, location: str) -> Row:
    if not isinstance(value, dict):
        raise DataUnreadable(
            f"a row is not an object: got {type(value).__name__} in {file}, {location}; allowed "
            '{"field": value, ...}; correct or remove it'
        )
    return value


_READERS = {PARQUET: _read_parquet, ".jsonl": _read_json, ".json": _read_json}
