"""Rows of a data source, one mapping at a time: local files, Hugging Face datasets, builtin tasks.

Rows are read as they come; what makes a row usable is decided in prompts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

from rlhf_api.gathering import ErrorCollector
from rlhf_api.spec.data import (
    BuiltinData,
    DataSource,
    DataSpec,
    PreferenceFields,
    PretrainingData,
    TrainingData,
)
from rlhf_runtime.data import files, sort_digits

Row = Mapping[str, Any]


class Split(StrEnum):
    """Which of the sources of a job: data.train, data.pretraining or data.evaluation."""

    TRAIN = "train"
    PRETRAINING = "pretraining"
    EVALUATION = "evaluation"


def read_rows(source: DataSource, split: Split, seed: int) -> Iterator[Row]:
    """The rows of a source, at most `maxRows` of them, in their own order.

    seed: schedule.seed; only builtin tasks depend on it.

    Raises (while iterating, too):
        DataNotFound, DataUnreadable, EmptyDataset.
    """
    return islice(_all_rows(source, split, seed), source.max_rows)


def preferences_of(source: DataSource) -> PreferenceFields | None:
    """The columns of a source's pairs; None where it has none."""
    return source.preferences if isinstance(source, TrainingData) else None


def texts_of(source: DataSource) -> str | None:
    """The column of a source's whole texts; None where it has prompts."""
    return source.texts if isinstance(source, PretrainingData) else None


def find_sources(data: DataSpec) -> None:
    """Check that local files are there, before anything is started to read them.

    Raises:
        DataNotFound, DataUnreadable.
        SeveralErrors: several of these.
    """
    gathered = ErrorCollector()
    sources: dict[Split, DataSource | None] = {
        Split.TRAIN: data.train,
        Split.PRETRAINING: data.pretraining,
        Split.EVALUATION: data.evaluation,
    }
    for split, source in sources.items():
        if source is not None and source.path is not None:
            with gathered.check():
                files.find_file(source.path, setting_of(split))
    gathered.raise_all()


def setting_of(split: Split) -> str:
    """The manifest's field with the path of a source's file."""
    return f"data.{split.value}.path"


def _all_rows(source: DataSource, split: Split, seed: int) -> Iterator[Row]:
    if source.path is not None:
        return files.read_file(source.path, setting=setting_of(split))
    if source.hugging_face is not None:
        from rlhf_runtime.data import hub_dataset  # imports `datasets`, which takes seconds

        return hub_dataset.read_dataset(source, setting=f"data.{split.value}")
    assert source.builtin is BuiltinData.SORT_DIGITS
    if split is Split.EVALUATION:
        return sort_digits.evaluation_rows(seed)
    if preferences_of(source) is not None:
        return sort_digits.training_pairs(seed)
    return sort_digits.training_rows(seed)
