"""Rows of a data source, one mapping at a time: local files, Hugging Face datasets, builtin tasks.

Rows are read as they come; what makes a row usable is decided in prompts.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from itertools import islice
from typing import Any

from rlhf_api.spec.data import (
    BuiltinData,
    DataSource,
    DataSpec,
    PreferenceFields,
    TrainingData,
)
from rlhf_runtime.data import files, sort_digits

Row = Mapping[str, Any]


class Split(StrEnum):
    """Which of the two sources of a job: data.train or data.evaluation."""

    TRAIN = "train"
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


def find_sources(data: DataSpec) -> None:
    """Check that local files are there, before anything is started to read them.

    Raises:
        DataNotFound, DataUnreadable.
    """
    for split, source in ((Split.TRAIN, data.train), (Split.EVALUATION, data.evaluation)):
        if source is not None and source.path is not None:
            files.find_file(source.path, _setting(split))


def _setting(split: Split) -> str:
    return f"data.{split.value}.path"


def _all_rows(source: DataSource, split: Split, seed: int) -> Iterator[Row]:
    if source.path is not None:
        return files.read_file(source.path, setting=_setting(split))
    if source.hugging_face is not None:
        from rlhf_runtime.data import hub_dataset  # imports `datasets`, which takes seconds

        return hub_dataset.read_dataset(source, setting=f"data.{split.value}")
    assert source.builtin is BuiltinData.SORT_DIGITS
    if split is Split.EVALUATION:
        return sort_digits.evaluation_rows(seed)
    if preferences_of(source) is not None:
        return sort_digits.training_pairs(seed)
    return sort_digits.training_rows(seed)
