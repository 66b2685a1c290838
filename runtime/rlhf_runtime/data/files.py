"""Rows of local .parquet, .jsonl and .json files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, EmptyDataset

PARQUET_BATCH_ROWS = 1024


def read_file(path: str, setting: str) -> Iterator[Mapping[str, Any]]:
    """Rows of one file, by the ending of its name.

    A .json file holds either a list of objects or one object per line, as .jsonl does.

    setting: the manifest's field that names the file, for messages.

    Raises:
        DataNotFound: no such file.
        EmptyDataset: a file of no bytes.
        DataUnreadable: another ending, or contents that do not match it; also while iterating.
    """
    file = find_file(path, setting)
    if file.stat().st_size == 0:
        raise EmptyDataset(
            f"{setting} is an empty file: got {path} with 0 bytes; fill it with rows"
        )
    return _READERS[file.suffix](file)


def find_file(path: str, setting: str) -> Path:
    """The file of that path; see `read_file` for arguments and errors. Reads nothing."""
    file = Path(path).expanduser()
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "nothing there"
        raise DataNotFound(
            f"{setting} is not a file: got {path} ({kind}), allowed a .parquet, .jsonl or .json "
            "file that the workers can read; correct the path or mount the volume that holds it"
        )
    if file.suffix not in _READERS:
        raise DataUnreadable(
            f"{setting} has an unknown kind: got {file.name}, allowed names ending in "
            f"{', '.join(_READERS)}; convert the file or rename it"
        )
    return file


def _read_parquet(file: Path) -> Iterator[Mapping[str, Any]]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(file) as table:
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
    except json.JSONDecodeError as error:
        raise DataUnreadable(f"not valid JSON: got {file}: {error}; correct the file") from error
    for index, value in enumerate(values):
        yield _as_object(value, file, f"entry {index}")


def _json_lines(stream: TextIO, file: Path) -> Iterator[Mapping[str, Any]]:
    for number, line in enumerate(stream, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataUnreadable(
                f"not valid JSON: got {file}, line {number}: {error}; correct or remove the line"
            ) from error
        yield _as_object(value, file, f"line {number}")


def _as_object(value: Any, file: Path, place: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise DataUnreadable(
            f"a row is not an object: got {type(value).__name__} in {file}, {place}; allowed "
            '{"field": value, ...}; correct or remove it'
        )
    return value


_READERS = {".parquet": _read_parquet, ".jsonl": _read_json, ".json": _read_json}
