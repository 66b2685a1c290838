"""Which tokens a response mask keeps, and what is none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.roles.mini_batches import LossMask

LENGTHS = np.array([2, 0, 3, 1], dtype=np.int32)
ROWS = np.array([4, 5, 8, 9])
FLAGS = [1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("dtype", [np.int8, np.bool_, np.int64, np.float32])
def test_tokens_of_one_count(dtype: Any) -> None:
    own = LossMask.from_columns(
        {"response_mask": Column(np.array(FLAGS, dtype), LENGTHS)}, LENGTHS, ROWS
    )
    assert own.flags.tolist() == list(map(bool, FLAGS))
    assert own.counts.tolist() == [1, 0, 2, 0]


def test_without_a_mask_all_count() -> None:
    own = LossMask.from_columns({}, LENGTHS, ROWS)
    assert own.flags.tolist() == [True] * 6 and own.counts.tolist() == LENGTHS.tolist()


def test_no_rows_have_no_tokens() -> None:
    nothing = np.zeros(0, dtype=np.int32)
    mask = {"response_mask": Column(nothing, nothing)}
    own = LossMask.from_columns(mask, nothing, np.zeros(0, dtype=np.int64))
    assert len(own.flags) == len(own.counts) == 0


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (Column(np.ones(4)), "has one value per row: got no lengths, allowed one value for each"),
        (
            Column(np.ones(6), np.array([2, 1, 2, 1], dtype=np.int32)),
            "other lengths than the responses: got 1 values in row 5, allowed 0; write Column",
        ),
        (
            Column(np.array([1, 0, 0, 1, 2, 0]), LENGTHS),
            "another value than 0 and 1: got 2 in row 8, allowed 1 for .* and 0 .*; correct the op",
        ),
        (Column(np.array([1, -1, 0, 1, 1, 0]), LENGTHS), "got -1 in row 4"),
        (Column(np.array([1, 0, 0, 1, 1, np.nan]), LENGTHS), "got nan in row 9"),
    ],
)
def test_what_is_no_mask_is_refused_with_its_row(mask: Column, message: str) -> None:
    with pytest.raises(
        UserCodeFailed, match=f"^response_mask has .*{message.removeprefix('has ')}"
    ):
        LossMask.from_columns({"response_mask": mask}, LENGTHS, ROWS)
