"""How many rows are read before a start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from rlhf_runtime.data.rows import Row
from rlhf_runtime.preflight.findings import RowLimit

BATCHES: list[list[Row]] = [[{"prompt": str(number)}] * 2 for number in range(5)]


def ticking() -> Iterator[float]:
    """A clock of which every look takes a second."""
    return iter(map(float, count()))


@pytest.mark.parametrize(
    ("seconds", "enough", "read", "is_late"),
    [
        (None, None, 5, False),
        (None, 3, 2, False),
        (None, 4, 2, False),
        (3.0, None, 2, True),
        (3.0, 3, 2, False),
        (9.0, None, 5, False),
        (0.0, None, 1, True),
    ],
)
def test_rows_end_with_time_or_with_enough(
    seconds: float | None, enough: int | None, read: int, is_late: bool
) -> None:
    """The clock is looked at before the first batch is asked for, and when each is there."""
    limit = RowLimit(seconds, enough, ticking().__next__)
    assert list(limit(BATCHES)) == BATCHES[:read]
    assert (limit.num_read, limit.is_late) == (2 * read, is_late)


def test_time_begins_before_the_first_row_is_there() -> None:
    """It may take long to read, and the first batch is given however late it is."""
    now = 0.0

    def slow() -> Iterator[list[Row]]:
        nonlocal now
        now = 60.0
        yield from BATCHES

    limit = RowLimit(2.0, clock=lambda: now)
    assert list(limit(slow())) == BATCHES[:1] and limit.is_late
