"""Rows of local .parquet, .jsonl and .json files."""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, EmptyDataset
from rlhf_runtime.unreadable import unreadable_as

PARQUET = ".parquet"
LOOKED_AT_LINES = 1024
"""After a broken line of JSON, for more of them."""
NAMED_LINES = 5
"""Broken ones that a message names beside the first."""
_NOT_JSON = (ValueError, RecursionError)
"""What json says of a text: also of whole numbers of more digits, or lists nested more deeply, than
Python takes."""
PARQUET_BATCH_ROWS = 1024
PARQUET_BUFFER_BYTES = 1 << 20
"""Of a column that are read at a time: its part of a row group may be as large as the file."""


def read_file(path: str, setting: str) -> Iterator[Mapping[str, Any]]:
    """Rows of one file, by the ending of its name.

    A .json file holds either a list of objects or one object per line, as .jsonl does.

    setting: the manifest's field that names the file, for messages.

    Raises:
        DataNotFound: no such file.
        EmptyDataset: a file of no bytes.
        DataUnreadable: another ending, contents that do not match it, or the system does not let
            it be read; also while iterating.
    """
    file = find_file(path, setting)
    with unreadable_as(DataUnreadable, setting, path):
        num_bytes = file.stat().st_size
    if num_bytes == 0:
        raise EmptyDataset(
            f"{setting} is an empty file: got {path} with 0 bytes; fill it with rows"
        )
    return _rows(file, setting)


def exceeds_before_first_row(path: str, setting: str, num_bytes: int) -> bool:
    """Whether more than a number of bytes of a file have to be read and held before there is a row:
    a list of objects is read as a whole, and so is a line. For other arguments and errors see
    `read_file`."""
    file = find_file(path, setting)
    with unreadable_as(DataUnreadable, setting, path):
        is_larger = file.suffix != PARQUET and file.stat().st_size > num_bytes
        return is_larger and _begins_with_more(file, num_bytes)


def _begins_with_more(file: Path, num_bytes: int) -> bool:
    """Whether a larger file is a list, or its first line as large."""
    with file.open("rb") as stream:
        first = stream.read(1)
        while first.isspace():
            first = stream.read(1)
        return first == b"[" or len(stream.readline(num_bytes)) == num_bytes


def _rows(file: Path, setting: str) -> Iterator[Mapping[str, Any]]:
    with unreadable_as(DataUnreadable, setting, file):
        yield from _READERS[file.suffix](file)


def find_file(path: str, setting: str) -> Path:
    """The file of that path; see `read_file` for arguments and errors. Reads nothing."""
    file = Path(os.path.expanduser(path))  # which leaves the home of nobody as it is
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
                yield from batch.to_pylist()
    except pyarrow.ArrowException as error:
        raise DataUnreadable(
            f"not a readable parquet file: got {file}: {error}; write it again"
        ) from error


def _read_json(file: Path) -> Iterator[Mapping[str, Any]]:
    with file.open(encoding="utf-8") as stream:
        try:
            first = stream.read(1)
            while first.isspace():
                first = stream.read(1)
            stream.seek(0)
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
                f"{_broken_lines(stream, number)}; correct or remove what is broken"
            ) from error
        yield _as_object(value, file, f"line {number}")


def _broken_lines(following: Iterable[str], number: int) -> str:
    """Which of the lines that follow a broken one are broken, too."""
    lines = enumerate(islice(following, LOOKED_AT_LINES), start=number + 1)
    broken = [f"{at:,}" for at, line in lines if line.strip() and not _is_json(line)]
    if not broken:
        return ""
    more = f" and {len(broken) - NAMED_LINES:,} more" if len(broken) > NAMED_LINES else ""
    return f" (of the next {LOOKED_AT_LINES:,} lines also {', '.join(broken[:NAMED_LINES])}{more})"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except _NOT_JSON:
        return False
    return True


def _as_object(value: Any, file: Path, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataUnreadable(
            f"a row is not an object: got {type(value).__name__} in {file}, {place}; allowed "
            '{"field": value, ...}; correct or remove it'
        )
    return value


_READERS = {PARQUET: _read_parquet, ".jsonl": _read_json, ".json": _read_json}
