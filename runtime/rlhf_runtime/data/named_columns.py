"""Checks that the columns that a manifest names exist in the rows of a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from rlhf_api.error_collector import raise_together
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import MissingField
from rlhf_runtime.data.file_paths import find_files
from rlhf_runtime.data.files import Row, columns_of
from rlhf_runtime.data.rows import (
    CHUNK_ROWS,
    find_folder,
    preference_fields,
    setting_paths,
    text_field,
)
from rlhf_runtime.data.saved_dataset import media_columns
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.row_values import has_field

# Maximum of files that a message names; of the others it gives the number.
MAX_NAMED_FILES = 3


def require_columns(chunk: list[Row], source: DataSource, setting: SourceSetting) -> None:
    """Refuse columns that no row of a chunk has: the manifest names the wrong ones.

    Raises:
        MissingField: one such column.
        SeveralErrors: several.
    """
    columns = list(dict.fromkeys(column for row in chunk for column in row))
    raise_together(
        [
            MissingField(
                f"{setting}.{field} names a column that does not exist: got {name}, "
                f"allowed {', '.join([*columns, *_entries(chunk, name)]) or 'none'}; name one "
                f"column by {setting}.{field}: several can only be joined in the data"
            ).at(*setting.location(*field.split(".")))
            for field, name in _named_columns(source).items()
            if not any(has_field(row, name) for row in chunk)
        ]
    )


def _entries(chunk: list[Row], name: str) -> list[str]:
    """Return dotted names of the entries of the map that a dotted name begins with."""
    head = name.partition(".")[0]
    maps = [row[head] for row in chunk if isinstance(row.get(head), Mapping)]
    return [f"{head}.{entry}" for entry in dict.fromkeys(entry for map_ in maps for entry in map_)]


def require_columns_of_path(source: DataSource, setting: SourceSetting) -> None:
    """Check the columns of files, or of a saved dataset, before rows are read.

    Raises:
        DataNotFound, DataUnreadable: a file cannot be read.
        MissingField: some files of several lack a column, or it has no texts.
        SeveralErrors: several of these.
    """
    files = dict[Path, str]()
    for field, path in setting_paths(source, setting).items():
        if (folder := find_folder(path, field, source, setting)) is not None:
            _refuse_media(source, setting, media_columns(folder, field), folder)
        else:
            files |= dict.fromkeys(find_files(path, field), field)
    # With maxRows the last files may be of no use.
    if source.max_rows is None:
        _require_same_columns(source, files, setting)


def _refuse_media(
    source: DataSource, setting: SourceSetting, media: Mapping[str, str], folder: Path
) -> None:
    """Refuse columns of images and other files, which are no part of rows."""
    raise_together(
        [
            MissingField(
                f"{setting}.{field} names a column of type {media[name]}: got {name} of "
                f"{folder}, allowed texts, numbers and lists of messages; name another column"
            ).at(*setting.location(*field.split(".")))
            for field, name in _named_columns(source).items()
            if name in media
        ]
    )


def _require_same_columns(
    source: DataSource, files: Mapping[Path, str], setting: SourceSetting
) -> None:
    """Refuse columns that some files of a source have and others lack.

    Columns that the manifest does not name may differ.

    Args:
        source: of the files.
        files: each with the manifest's field that names it.
        setting: the manifest's field of the source.
    """
    if len(files) <= 1:
        return
    columns = {file: columns_of(file, field, CHUNK_ROWS) for file, field in files.items()}
    path = source.path or f"{setting}.paths"
    errors = []
    for field, name in _named_columns(source).items():
        without = [file for file, names in columns.items() if not _has_column(names, name)]
        # Without any such file `require_columns` lists the columns to choose from.
        if without and len(without) < len(files):
            having = next(file for file in files if file not in without)
            errors.append(
                MissingField(
                    f"{setting}.{field} names a column that not all files of "
                    f"{path} have: got {name}, which {having} has and "
                    f"{_first_few(without)} lacks (columns: "
                    f"{', '.join(columns[without[0]]) or 'none'}), allowed a column of all files; "
                    "write these files with the same columns, or name others by "
                    f"{setting}.{'path' if source.paths is None else 'paths'}"
                ).at(*setting.location(*field.split(".")))
            )
    raise_together(errors)


def _named_columns(source: DataSource) -> dict[str, str]:
    """Return the columns that some row must have, by their settings."""
    # Pairs need no prompt column: their messages may include the prompt.
    texts, preferences = text_field(source), preference_fields(source)
    if texts is not None:
        return {"textField": texts}
    columns = {
        "answerField": source.answer_field,
        "chatTemplateArgumentsField": source.chat_template_arguments_field,
    }
    if preferences is not None:
        columns["preferences.chosenField"] = preferences.chosen_field
        columns["preferences.rejectedField"] = preferences.rejected_field
    else:
        columns = {"promptField": source.prompt_field, **columns}
    return {setting: name for setting, name in columns.items() if name is not None}


def _has_column(columns: Sequence[str], name: str) -> bool:
    """True if a column has this name, or may be a map with the entry that a dotted name names."""
    return any(name == column or name.startswith(f"{column}.") for column in columns)


def _first_few(files: Sequence[Path]) -> str:
    """List the first few files, and the number of all others."""
    num_more = len(files) - MAX_NAMED_FILES
    names = ", ".join(map(str, files[:MAX_NAMED_FILES]))
    return names + (f" (and {num_more} more)" if num_more > 0 else "")
