"""Reads rows of a data source: local files, Hugging Face datasets, generated tasks.

Rows are mappings, read one at a time and not checked: prompts.py does that.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from rlhf_api.error_collector import ErrorCollector
from rlhf_api.spec.data import DataSpec, PreferenceFields, PretrainingData, TrainingData
from rlhf_api.spec.row_sources import BuiltinData, DataSource, MixedData, TrainOn
from rlhf_runtime.data import (
    calculations,
    files,
    reasoning_gym_rows,
    saved_dataset,
    sort_digits,
)
from rlhf_runtime.data.errors import DataNotFound
from rlhf_runtime.data.file_paths import find_files
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.source_setting import SourceSetting, Split

# Rows of a chunk. A column that no row of a chunk has does not exist.
CHUNK_ROWS = 1024
# Rows of a chunk of generated ones: some need a second each, and time limits apply between chunks.
GENERATED_CHUNK_ROWS = 16
# Maximum of characters in a batch. A tokenizer allocates some hundred bytes per token of a batch,
# and cannot be interrupted.
BATCH_CHARACTERS = 1 << 20

# Rows of the generated tasks, by their seed: to train on, and held out.
_TRAINING_ROWS = {
    BuiltinData.SORT_DIGITS: sort_digits.training_rows,
    BuiltinData.CALCULATIONS: calculations.training_rows,
}
_EVALUATION_ROWS = {
    BuiltinData.SORT_DIGITS: sort_digits.evaluation_rows,
    BuiltinData.CALCULATIONS: calculations.evaluation_rows,
}

# Splits of Hugging Face datasets if the manifest names none.
DEFAULT_SPLITS = {Split.TRAIN: "train", Split.PRETRAINING: "train", Split.EVALUATION: "test"}


def read_rows(
    source: DataSource, setting: SourceSetting, seed: int, names: RowNames | None = None
) -> Generator[Row]:
    """Read the rows of a source, at most `maxRows` of them, in order.

    Closing them closes files, and ends the process of a generator.

    Args:
        source: of the rows.
        setting: the manifest's field of the source.
        seed: schedule.seed; only builtin tasks depend on it.
        names: gets each of several files as its first row is read. Default: nobody needs them.

    Raises (while iterating, too):
        DataNotFound, DataUnreadable, EmptyDataset.
    """
    return _first_rows(_all_rows(source, setting, seed, names), source.max_rows)


def _first_rows(rows: Iterator[Row], count: int | None) -> Generator[Row]:
    try:
        yield from islice(rows, count)
    finally:
        if isinstance(rows, Generator):
            rows.close()


def preference_fields(source: DataSource) -> PreferenceFields | None:
    """Return the columns of a source's pairs; None if it has no pairs."""
    return source.preferences if isinstance(source, TrainingData) else None


def trained_answers(source: DataSource) -> TrainOn:
    """Return the answers of a source's conversations that are trained on."""
    return source.train_on if isinstance(source, TrainingData) else TrainOn.LAST_ANSWER


def text_field(source: DataSource) -> str | None:
    """Return the column of a source's pretraining texts; None if it has prompts."""
    return source.texts if isinstance(source, PretrainingData) else None


def find_sources(data: DataSpec) -> None:
    """Check that local files and folders exist, before any process starts that reads them.

    Raises:
        DataNotFound, DataUnreadable.
        SeveralErrors: several of these.
    """
    gathered = ErrorCollector()
    for split, described in (
        (Split.TRAIN, data.train),
        (Split.PRETRAINING, data.pretraining),
        (Split.EVALUATION, data.evaluation),
    ):
        for setting, source in [] if described is None else single_sources(split, described):
            for field, path in setting_paths(source, setting).items():
                with gathered.check():
                    if find_folder(path, field, source, setting) is None:
                        find_files(path, field)
    gathered.raise_all()


def single_sources(split: Split, source: DataSource) -> list[tuple[SourceSetting, DataSource]]:
    """Return each of several sources in the form of an only one, with the manifest's field."""
    if isinstance(source, MixedData) and source.sources is not None:
        return [(SourceSetting(split, index), part) for index, part in enumerate(source.parts)]
    return [(SourceSetting(split), source)]


def setting_paths(source: DataSource, setting: SourceSetting) -> dict[str, str]:
    """Return the paths of a source by the manifest's field, such as data.train.paths[1]."""
    return {f"{setting}.{name}": path for name, path in source.named_paths.items()}


def find_folder(path: str, field: str, source: DataSource, setting: SourceSetting) -> Path | None:
    """Return the folder of the dataset that a path of a source names; None if it names files.

    Args:
        path: one of the source's.
        field: the manifest's field with the path.
        source: of the rows.
        setting: the manifest's field of the source.

    Raises:
        DataNotFound: the split does not exist, or files have one.
        DataUnreadable: the folder's description cannot be read.
    """
    if saved_dataset.is_saved_dataset(path):
        default = DEFAULT_SPLITS[setting.split]
        return saved_dataset.find_dataset(path, source.split, default, field)
    if source.split is not None:
        raise DataNotFound(
            f"{setting}.split is for Hugging Face datasets, and for folders of save_to_disk: got "
            f"{source.split} with {path}, allowed no split of files; remove it, or correct "
            f"{field}"
        ).at(*setting.location("split"))
    return None


def _all_rows(
    source: DataSource, setting: SourceSetting, seed: int, names: RowNames | None
) -> Iterator[Row]:
    if source.named_paths:
        return _rows_of_paths(source, setting, names or RowNames())
    if source.hugging_face is not None:
        from rlhf_runtime.data import hub_dataset  # imports `datasets`, which takes seconds

        split = source.split or DEFAULT_SPLITS[setting.split]
        return hub_dataset.read_dataset(source, split, str(setting))
    if source.reasoning_gym is not None:
        return reasoning_gym_rows.read_rows(source.reasoning_gym, setting)
    assert source.builtin is not None
    if setting.split is Split.EVALUATION:
        return _EVALUATION_ROWS[source.builtin](seed)
    # Other tasks have no pairs; the missing columns are named later.
    if preference_fields(source) is not None and source.builtin is BuiltinData.SORT_DIGITS:
        return sort_digits.training_pairs(seed)
    return _TRAINING_ROWS[source.builtin](seed)


def _rows_of_paths(source: DataSource, setting: SourceSetting, names: RowNames) -> Iterator[Row]:
    """Read the files and datasets of a source's paths, one after the other; for arguments and
    errors see `read_rows`."""
    parts = list[tuple[Path, Iterator[Row]]]()
    for field, path in setting_paths(source, setting).items():
        folder = find_folder(path, field, source, setting)
        if folder is not None:
            parts.append((folder, saved_dataset.read_dataset(folder, field)))
        else:
            found = files.find_filled_files(path, field)
            parts += [(file, files.read_file(file, field)) for file in found]
    return parts[0][1] if len(parts) == 1 else _joined(parts, names)


def _joined(parts: Iterable[tuple[Path, Iterator[Row]]], names: RowNames) -> Iterator[Row]:
    num_read = 0
    for path, rows in parts:
        names.start_file(path, num_read)
        for row in rows:
            num_read += 1
            yield row


def row_chunks(rows: Iterable[Row], size: int = CHUNK_ROWS) -> Iterator[list[Row]]:
    """Yield rows in chunks of one size; the last one may be shorter."""
    iterator = iter(rows)
    while chunk := list(islice(iterator, size)):
        yield chunk


def row_batches(chunk: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield a chunk in batches of at most `BATCH_CHARACTERS`, or of one longer row."""
    batch: list[Row] = []
    total = 0
    for row in chunk:
        size = num_characters(row)
        # A single row over the limit is a batch of its own.
        if batch and total + size > BATCH_CHARACTERS:
            yield batch
            batch, total = [], 0
        batch.append(row)
        total += size
    if batch:
        yield batch


def num_characters(value: Any) -> int:
    """Count the characters of all texts in a value of a row."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(num_characters, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(num_characters, value))
    return 0
