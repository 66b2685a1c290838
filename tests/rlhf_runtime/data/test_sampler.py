from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_runtime.data.sampler import rows_for_step


@st.composite
def batches(draw: st.DrawFn) -> tuple[int, int, int]:
    """Rows, prompts per step and a seed, with many sizes that do not divide each other."""
    num_rows = draw(st.integers(1, 40))
    return num_rows, draw(st.integers(1, num_rows)), draw(st.integers(0, 5))


def steps(num_rows: int, prompts: int, shuffle: bool, seed: int, epochs: int = 6) -> np.ndarray:
    count = -(-epochs * num_rows // prompts)
    return np.concatenate(
        [rows_for_step(step, num_rows, prompts, shuffle, seed) for step in range(count)]
    )


@given(batches(), st.booleans())
def test_every_epoch_holds_every_row_once(batch: tuple[int, int, int], shuffle: bool) -> None:
    num_rows, prompts, seed = batch
    sequence = steps(num_rows, prompts, shuffle, seed)
    for start in range(0, 6 * num_rows, num_rows):
        assert sorted(sequence[start : start + num_rows]) == list(range(num_rows))


@given(batches(), st.booleans())
def test_no_batch_holds_a_row_twice(batch: tuple[int, int, int], shuffle: bool) -> None:
    num_rows, prompts, seed = batch
    sequence = steps(num_rows, prompts, shuffle, seed)
    for start in range(0, len(sequence), prompts):
        rows = sequence[start : start + prompts]
        assert len(rows) == prompts
        assert len(set(rows.tolist())) == prompts


@given(batches(), st.integers(0, 10**6))
def test_a_step_depends_on_its_number_alone(batch: tuple[int, int, int], step: int) -> None:
    num_rows, prompts, seed = batch
    first = rows_for_step(step, num_rows, prompts, True, seed)
    assert first.dtype == np.int64
    assert np.array_equal(first, rows_for_step(step, num_rows, prompts, True, seed))


def test_without_shuffle_rows_come_in_their_order() -> None:
    assert steps(5, 3, False, 0, epochs=3).tolist()[:12] == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    first, second = (rows_for_step(step, 100, 100, True, 7).tolist() for step in (0, 1))
    other_seed = rows_for_step(0, 100, 100, True, 8).tolist()
    assert first != second
    assert first != other_seed
    assert first != list(range(100))


def test_epochs_differ_where_batches_straddle_them() -> None:
    sequence = steps(100, 30, True, 0)
    epochs = {tuple(sequence[start : start + 100]) for start in range(0, 600, 100)}
    assert len(epochs) == 6


@pytest.mark.parametrize(
    ("step", "num_rows", "prompts", "seed"),
    [(-1, 4, 2, 0), (0, 4, 5, 0), (0, 4, 0, 0), (0, 4, 2, -1)],
)
def test_impossible_batches_are_refused(step: int, num_rows: int, prompts: int, seed: int) -> None:
    with pytest.raises(ValueError, match="no such batch"):
        rows_for_step(step, num_rows, prompts, True, seed)
