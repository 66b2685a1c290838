"""Finds the files that data.*.path names: one, or all that a pattern matches."""

from __future__ import annotations

import glob
import os.path
from pathlib import Path

from rlhf_runtime.data.errors import DataNotFound, DataUnreadable
from rlhf_runtime.data.source_setting import field_location
from rlhf_runtime.unreadable_files import unreadable_as

PARQUET = ".parquet"
# Suffixes of files with rows.
SUFFIXES = (PARQUET, ".jsonl", ".json")


def find_files(path: str, setting: str) -> list[Path]:
    """Find the files of a path, sorted by name, without reading them.

    A path that exists is one file, also if it has characters of a pattern in its name.

    setting: the manifest's field with the path, for messages.

    Raises:
        DataNotFound: no such file, or no file matches the pattern.
        DataUnreadable: unknown suffix, or no permission.
    """
    # Not Path.expanduser, which raises for an unknown user; this leaves such a path unchanged.
    pattern = os.path.expanduser(path)
    if not glob.has_magic(pattern) or os.path.exists(pattern):
        return [_find_file(Path(pattern), path, setting)]
    matches = sorted(glob.glob(pattern, recursive=True))
    # `**` matches folders, too. A folder with the name of a file is an error.
    files = [
        _find_file(Path(match), match, setting)
        for match in matches
        if not os.path.isdir(match) or Path(match).suffix in SUFFIXES
    ]
    if not files:
        folders = " but folders" if matches else ""
        raise DataNotFound(
            f"{setting} matches no file: got {path} (nothing there{folders}), allowed a pattern of "
            ".parquet, .jsonl or .json files that the workers can read; correct the pattern or "
            "mount the volume that holds them"
        ).at(*field_location(setting))
    return files


def _find_file(file: Path, path: str, setting: str) -> Path:
    with unreadable_as(DataUnreadable, setting, path):
        is_file, is_folder = file.is_file(), file.is_dir()
    if not is_file:
        kind = "a folder" if is_folder else "nothing there"
        raise DataNotFound(
            f"{setting} is not a file: got {path} ({kind}), allowed a .parquet, .jsonl or .json "
            "file, or a folder of Dataset.save_to_disk, that the workers can read; correct the "
            "path or mount the volume that holds it"
        ).at(*field_location(setting))
    if file.suffix not in SUFFIXES:
        raise DataUnreadable(
            f"{setting} has an unknown kind: got {file.name}, allowed names ending in "
            f"{', '.join(SUFFIXES)}; convert the file or rename it"
        ).at(*field_location(setting))
    return file
