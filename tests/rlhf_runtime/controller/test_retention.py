"""Which checkpoint goes first on a full disk."""

from __future__ import annotations

import pytest

from rlhf_runtime.checkpoint.record import CheckpointRecord
from rlhf_runtime.controller.retention import deletion_order

RECORDS = [
    CheckpointRecord(step, 1, {}, {"reward": reward})
    for step, reward in ((8, 0.1), (2, 0.9), (4, 0.3), (6, 0.2))
]


@pytest.mark.parametrize(
    ("newest", "best_by", "needs_best", "expected"),
    [
        (8, None, False, [2, 4, 6]),
        (8, "reward", False, [4, 6, 2]),
        (8, "reward", True, [4, 6]),
        (2, "reward", True, []),
        (6, "length", False, [2, 4]),
    ],
)
def test_the_oldest_goes_first_the_best_last_and_the_newest_never(
    newest: int, best_by: str | None, needs_best: bool, expected: list[int]
) -> None:
    assert deletion_order(RECORDS, newest, best_by, needs_best) == expected
