"""How many rows are read before a start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from rlhf_runtime.data.rows import Row
from rlhf_runtime.preflight import limits
from rlhf_runtime.preflight.limits import SomeRows

ROWS: list[Row] = [{"prompt": str(number)} for number in range(5)]


def ticking() -> Iterator[float]:
    """A clock of which every look takes a second."""
    return iter(map(float, count()))


@pytest.mark.parametrize(
    ("seconds", "enough", "read", "is_late"),
    [
        (None, None, 5, False),
        (None, 2, 2, False),
        (3.0, None, 2, True),
        (3.0, 2, 2, False),
        (9.0, None, 5, False),
        (0.0, None, 1, True),
    ],
)
def test_rows_end_with_time_or_with_enough(
    monkeypatch: pytest.MonkeyPatch,
    seconds: float | None,
    enough: int | None,
    read: int,
    is_late: bool,
) -> None:
    """Each is looked at once more than it is read; the first look begins."""
    monkeypatch.setattr(limits, "CHUNK_ROWS", 1)
    some = SomeRows(seconds, enough, ticking().__next__)
    assert list(some(ROWS)) == ROWS[:read]
    assert (some.num_read, some.is_late) == (read, is_late)


def test_rows_that_are_judged_together_are_all_read() -> None:
    """However late the first of them comes."""
    some = SomeRows(0.0, clock=ticking().__next__)
    rows = ({"prompt": str(number)} for number in count())
    assert len(list(some(rows))) == limits.CHUNK_ROWS and some.is_late
