"""Rows of datasets in folders that `Dataset.save_to_disk` of Hugging Face's datasets wrote.

Read by pyarrow: importing `datasets` takes seconds, and a saved format such as "torch" would change
the values of rows.
"""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rlhf_runtime.data.errors import DataNotFound, DataUnreadable
from rlhf_runtime.data.files import Row, rows_of_batch
from rlhf_runtime.data.source_setting import field_location
from rlhf_runtime.unreadable_files import unreadable_as

STATE = "state.json"
INFO = "dataset_info.json"
SPLITS = "dataset_dict.json"
Entry = TypeVar("Entry", list[Any], dict[str, Any])
# Types of columns whose values are files. They are no part of rows.
MEDIA = ("Image", "Audio", "Video", "Pdf", "Nifti")


def is_saved_dataset(path: str) -> bool:
    """True if a path is a folder of a Dataset, or of a DatasetDict."""
    folder = os.path.expanduser(path)
    return any(os.path.isfile(os.path.join(folder, name)) for name in (STATE, SPLITS))


def find_dataset(path: str, split: str | None, default: str, field: str) -> Path:
    """Find the folder of one Dataset.

    Args:
        path: folder of a Dataset, or of a DatasetDict with a folder for each split.
        split: the manifest's split. None: the default one of a DatasetDict, or the only Dataset.
        default: split of a DatasetDict if the manifest names none.
        field: the manifest's field with the path, such as data.train.path.

    Raises:
        DataNotFound: no such split.
        DataUnreadable: a file of the folder cannot be read.
    """
    folder, source = Path(os.path.expanduser(path)), field.rpartition(".")[0]
    if not (folder / SPLITS).is_file():
        saved = _read_json(folder / STATE, field).get("_split")
        if split is not None and split != saved:
            raise DataNotFound(
                f"{source}.split does not exist in {path}: got {split}, allowed "
                f"{saved or 'none: the folder is one dataset'}; remove it, or correct "
                f"{field}"
            ).at(*field_location(source), "split")
        return folder
    splits = _read_entry(folder / SPLITS, "splits", list, field)
    name = default if split is None else split
    if name not in splits:
        origin = "" if split is not None else f", the default of {source}"
        raise DataNotFound(
            f"{source}.split does not exist in {path}: got {name}{origin}, allowed "
            f"{', '.join(map(str, splits)) or 'none'}; set {source}.split"
        ).at(*field_location(source), "split")
    return folder / name


def read_dataset(folder: Path, field: str) -> Iterator[Row]:
    """Read the rows of a Dataset, without columns of media.

    The number of a class label stays a number, as in rows of the hub.

    Args:
        folder: of the Dataset.
        field: the manifest's field with the path, for messages.

    Raises:
        DataNotFound: a file of the folder is missing.
        DataUnreadable: one cannot be read.
    """
    media = media_columns(folder, field)
    files = _data_files(folder, field)
    for file in files:
        if not file.is_file():
            raise DataNotFound(
                f"{field} is an incomplete dataset: got {folder} without {file.name}, which "
                f"its {STATE} lists; copy the folder again"
            ).at(*field_location(field))
    for file in files:
        yield from _read_arrow(file, media, field)


def media_columns(folder: Path, field: str) -> dict[str, str]:
    """Return the type of each column of a Dataset whose values are images or other files.

    Raises:
        DataUnreadable: the description of the columns cannot be read.
    """
    features = _read_entry(folder / INFO, "features", dict, field)
    types = {name: _media_type(feature) for name, feature in features.items()}
    return {name: kind for name, kind in types.items() if kind is not None}


def _data_files(folder: Path, field: str) -> list[Path]:
    """Return the files with a Dataset's rows, in order."""
    entries = _read_entry(folder / STATE, "_data_files", list, field)
    names = [entry.get("filename") if isinstance(entry, dict) else None for entry in entries]
    if None in names:
        raise _no_dataset(
            folder / STATE, "an entry of _data_files that names no file", "filenames", field
        )
    return [folder / str(name) for name in names]


def _media_type(feature: Any) -> str | None:
    """Return the first type of media in a column's description, at any depth."""
    if isinstance(feature, Mapping):
        if feature.get("_type") in MEDIA:
            return str(feature["_type"])
        feature = list(feature.values())
    if not isinstance(feature, list):
        return None
    return next((kind for part in feature if (kind := _media_type(part)) is not None), None)


def _read_arrow(file: Path, media: Mapping[str, str], field: str) -> Iterator[Row]:
    import pyarrow

    with unreadable_as(DataUnreadable, field, file):
        try:
            with pyarrow.memory_map(str(file)) as mapped, pyarrow.ipc.open_stream(mapped) as stream:
                names = [name for name in stream.schema.names if name not in media]
                for batch in stream:
                    yield from rows_of_batch(batch.select(names))
        except (pyarrow.ArrowException, OverflowError, ValueError) as error:
            raise DataUnreadable(
                f"not a readable file of a saved dataset: got {file}: {error}; save the dataset "
                "again"
            ) from error


def _read_entry(file: Path, name: str, kind: type[Entry], field: str) -> Entry:
    """Read an entry of one of the folder's files that describe it."""
    value = _read_json(file, field).get(name)
    if not isinstance(value, kind):
        got = f"{name} of type {type(value).__name__}" if value is not None else f"no {name}"
        raise _no_dataset(file, got, "a list" if kind is list else "a map", field)
    return value


def _no_dataset(file: Path, got: str, allowed: str, field: str) -> DataUnreadable:
    return DataUnreadable(
        f"{field} is no readable dataset: got {file} with {got}, allowed {allowed}; save "
        "the dataset again"
    ).at(*field_location(field))


def _read_json(file: Path, field: str) -> Mapping[str, Any]:
    """Read one of the folder's files that describe it."""
    with unreadable_as(DataUnreadable, field, file):
        try:
            value = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise DataUnreadable(
                f"{field} is no readable dataset: got {file}, which is not JSON: {error}; "
                "save the dataset again"
            ) from error
    if not isinstance(value, dict):
        raise _no_dataset(file, f"a {type(value).__name__}", "a map", field)
    return value
