"""Rows of local .parquet, .jsonl and .json files."""

from __future__ import annotations

import json
import os.path
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, EmptyDataset
from rlhf_runtime.unreadable_files import unreadable_as

PARQUET = ".parquet"
# Lines after an invalid line of JSON that are checked, too.
CHECKED_LINES = 1024
# Maximum of further invalid lines that a message names.
MAX_NAMED_LINES = 5
# Errors of `json.loads`; also for integers with too many digits and for too deep nesting.
_NOT_JSON = (ValueError, RecursionError)
PARQUET_BATCH_ROWS = 1024
# Bytes of a column that are read at once. Without a limit pyarrow reads all of a row group's
# column, which may be the complete file.
PARQUET_BUFFER_BYTES = 1 << 20


def read_file(path: str, setting: str) -> Iterator[Mapping[str, Any]]:
    """Read the rows of one file, in the format of its suffix.

    A .json file holds either a list of objects or one object per line, as .jsonl does.

    setting: the manifest's field that names the file, for messages.

    Raises:
        DataNotFound: no such file.
        EmptyDataset: the file has no bytes.
        DataUnreadable: unknown suffix, contents of another format, or no permission; also raised
            while iterating.
    """
    file = find_file(path, setting)
    with unreadable_as(DataUnreadable, setting, path):
        num_bytes = file.stat().st_size
    # An empty file would otherwise be an unreadable parquet file, or no rows without a reason.
    if num_bytes == 0:
        raise EmptyDataset(
            f"{setting} is an empty file: got {path} with 0 bytes; fill it with rows"
        )
    return _rows(file, setting)


def has_large_first_row(path: str, setting: str, num_bytes: int) -> bool:
    """True if more than a number of bytes must be in memory before the first row is read.

    For other arguments and errors see `read_file`.
    """
    # A list of objects is parsed in one piece, and so is a line.
    file = find_file(path, setting)
    with unreadable_as(DataUnreadable, setting, path):
        is_larger = file.suffix != PARQUET and file.stat().st_size > num_bytes
        return is_larger and _starts_with_large_value(file, num_bytes)


def _starts_with_large_value(file: Path, num_bytes: int) -> bool:
    """True if a file is a list, or its first line has more than a number of bytes."""
    with file.open("rb") as stream:
        if stream.read(len(BOM_UTF8)) != BOM_UTF8:
            stream.seek(0)
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        return first == b"[" or len(stream.readline(num_bytes)) == num_bytes


def _rows(file: Path, setting: str) -> Iterator[Mapping[str, Any]]:
    with unreadable_as(DataUnreadable, setting, file):
        yield from _READERS[file.suffix](file)


def find_file(path: str, setting: str) -> Path:
    """Find the file of a path without reading it; see `read_file` for arguments and errors."""
    # Not Path.expanduser, which raises for an unknown user; this leaves such a path unchanged.
    file = Path(os.path.expanduser(path))
    with unreadable_as(DataUnreadable, setting, path):
        is_file, is_folder = file.is_file(), file.is_dir()
    if not is_file:
        kind = "a folder" if is_folder else "nothing there"
        raise DataNotFound(
            f"{setting} is not a file: got {path} ({kind}), allowed a .parquet, .jsonl or .json "
            "file that the workers can read; correct the path or mount the volume that holds it"
        ).at("spec", *setting.split("."))
    if file.suffix not in _READERS:
        raise DataUnreadable(
            f"{setting} has an unknown kind: got {file.name}, allowed names ending in "
            f"{', '.join(_READERS)}; convert the file or rename it"
        ).at("spec", *setting.split("."))
    return file


def _read_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(
            file, buffer_size=PARQUET_BUFFER_BYTES, pre_buffer=False
        ) as table:
            for batch in table.iter_batches(batch_size=PARQUET_BATCH_ROWS):
                yield from _rows_of(batch)
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise DataUnreadable(
            f"not a readable parquet file: got {file}: {error}; write it again"
        ) from error


def _rows_of(batch: Any) -> Iterator[Mapping[str, Any]]:
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


def _read_json(file: Path) -> Iterator[Mapping[str, Any]]:
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


def _json_array(stream: TextIO, file: Path) -> Iterator[Mapping[str, Any]]:
    try:
        values = json.load(stream)
    except UnicodeDecodeError:
        raise
    except _NOT_JSON as error:
        raise DataUnreadable(f"not valid JSON: got {file}: {error}; correct the file") from error
    for index, value in enumerate(values):
        yield _as_object(value, file, f"entry {index}")


def _json_lines(stream: TextIO, file: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
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
        json.loads(text)
    except _NOT_JSON:
        return False
    return True


def _as_object(value: Any, file: Path, location: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataUnreadable(
            f"a row is not an object: got {type(value).__name__} in {file}, {location}; allowed "
            '{"field": value, ...}; correct or remove it'
        )
    return value


_READERS = {PARQUET: _read_parquet, ".jsonl": _read_json, ".json": _read_json}
