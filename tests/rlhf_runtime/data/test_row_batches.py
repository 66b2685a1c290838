from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.data import rows as rows_module
from rlhf_runtime.data.rows import CHUNK_ROWS, num_characters, row_batches, row_chunks


@pytest.mark.parametrize(
    ("value", "characters"),
    [
        ("abc", 3),
        (12345, 0),
        (None, 0),
        ({"prompt": "ab", "answer": "c", "level": 4}, 3),
        ({"messages": [{"role": "user", "content": "hi"}, {"role": "system", "content": ""}]}, 12),
        (("a", ["bc", ("d",)]), 4),
    ],
)
def test_texts_are_counted_wherever_they_are(value: Any, characters: int) -> None:
    assert num_characters(value) == characters


def test_chunks_have_as_many_rows_as_are_judged_together() -> None:
    rows = [{"prompt": str(number)} for number in range(2 * CHUNK_ROWS + 1)]
    chunks = list(row_chunks(rows))
    assert [len(chunk) for chunk in chunks] == [CHUNK_ROWS, CHUNK_ROWS, 1]
    assert [row for chunk in chunks for row in chunk] == rows


@given(st.lists(st.integers(0, 30)), st.integers(1, 20))
def test_batches_are_full_and_not_too_long(sizes: list[int], most: int) -> None:
    """Or of one row; no two neighbours would fit into one."""
    rows = [{"prompt": "a" * size} for size in sizes]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_module, "BATCH_CHARACTERS", most)
        batches = list(row_batches(rows))
    assert [row for batch in batches for row in batch] == rows
    totals = [sum(map(num_characters, batch)) for batch in batches]
    assert all(
        len(batch) == 1 or total <= most for batch, total in zip(batches, totals, strict=True)
    )
    nexts = [num_characters(batch[0]) for batch in batches[1:]]
    assert all(total + first > most for total, first in zip(totals[:-1], nexts, strict=True))
