from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import (
    LONG_RUN,
    Column,
    concatenate,
    is_range,
    pack,
    pack_texts,
    repeat_rows,
    run_positions,
)

RUNS = st.lists(st.lists(st.integers(-9, 9), max_size=5), max_size=8)


def rows_of(numbers: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


def unpacked(column: Column) -> list[list[int]]:
    """The naive form of a packed column: a list of lists."""
    assert column.lengths is not None
    runs, begin = [], 0
    for length in column.lengths.tolist():
        runs.append(column.values[begin : begin + length].tolist())
        begin += length
    return runs


@st.composite
def runs_and_rows(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Runs, and some of their rows in any order, repeated or not."""
    runs = draw(RUNS)
    rows = st.lists(st.integers(0, len(runs) - 1), max_size=12) if runs else st.just([])
    return runs, draw(rows)


@settings(deadline=None)
@given(RUNS)
def test_packing_keeps_every_run(runs: list[list[int]]) -> None:
    column = pack(runs, np.int32)
    assert unpacked(column) == runs
    assert [run.tolist() for run in column.runs()] == runs
    assert column.num_rows == len(runs)
    assert column.values.dtype == np.int32 and column.lengths is not None
    assert column.num_bytes == 4 * sum(map(len, runs)) + 4 * len(runs)


def test_arrays_are_packed_in_the_type_asked_for() -> None:
    column = pack([np.array([1, 2]), np.array([], dtype=np.int64)], np.float32)
    assert column.values.dtype == np.float32 and unpacked(column) == [[1.0, 2.0], []]


@settings(deadline=None)
@given(runs_and_rows())
def test_taking_rows_of_a_packed_column_is_indexing_a_list(
    case: tuple[list[list[int]], list[int]],
) -> None:
    runs, rows = case
    assert unpacked(pack(runs, np.int32).take(rows_of(rows))) == [runs[row] for row in rows]


@settings(deadline=None)
@given(runs_and_rows())
def test_taking_rows_of_a_plain_column_is_indexing_a_list(
    case: tuple[list[list[int]], list[int]],
) -> None:
    runs, rows = case
    column = Column(np.array([[len(run), sum(run)] for run in runs]).reshape(-1, 2))
    taken = column.take(rows_of(rows)).values.tolist()
    assert taken == [[len(runs[row]), sum(runs[row])] for row in rows]


@settings(deadline=None)
@given(st.permutations(range(5)), st.integers(0, 5))
def test_long_runs_are_taken_like_short_ones(order: list[int], count: int) -> None:
    runs = [list(range(10 * row, 10 * row + LONG_RUN + row)) for row in range(5)]
    rows = order[:count]
    assert unpacked(pack(runs, np.int64).take(rows_of(rows))) == [runs[row] for row in rows]


@pytest.mark.parametrize("rows", [[5], [-6], [4, 5], [0, 5]])
def test_a_row_that_is_not_there_is_refused(rows: list[int]) -> None:
    for column in (pack([[1]] * 5, np.int32), Column(np.arange(5))):
        with pytest.raises(IndexError):
            column.take(rows_of(rows))


@pytest.mark.parametrize("column", [pack([[1, 2], [], [3]], np.int32), Column(np.arange(3))])
def test_all_rows_in_order_are_the_column_itself(column: Column) -> None:
    assert column.take(rows_of([0, 1, 2])) is column
    assert repeat_rows(column, 1) is column


@pytest.mark.parametrize("column", [pack([[1, 2], [], [3]], np.int32), Column(np.arange(3))])
def test_neighbours_in_order_are_not_copied(column: Column) -> None:
    taken = column.take(rows_of([1, 2]))
    assert np.shares_memory(taken.values, column.values)
    assert taken.num_rows == 2


@settings(deadline=None)
@given(st.lists(RUNS, min_size=1, max_size=4))
def test_columns_are_joined_like_lists(parts: list[list[list[int]]]) -> None:
    joined = concatenate([pack(part, np.int32) for part in parts])
    assert unpacked(joined) == [run for part in parts for run in part]
    plain = concatenate([Column(np.array([len(run) for run in part])) for part in parts])
    assert plain.values.tolist() == [len(run) for part in parts for run in part]


def test_one_column_joined_is_itself() -> None:
    column = pack([[1]], np.int32)
    assert concatenate([column]) is column


def test_packed_and_plain_columns_are_not_joined() -> None:
    with pytest.raises(ValueError, match="2 columns, 1 of them packed"):
        concatenate([pack([[1]], np.int32), Column(np.arange(1))])
    with pytest.raises(ValueError, match="0 columns"):
        concatenate([])


@settings(deadline=None)
@given(RUNS, st.integers(0, 3))
def test_copies_of_a_row_stand_next_to_each_other(runs: list[list[int]], times: int) -> None:
    repeated = repeat_rows(pack(runs, np.int32), times)
    assert unpacked(repeated) == [run for run in runs for _ in range(times)]


@settings(deadline=None)
@given(st.lists(st.text(), max_size=6))
def test_texts_come_back_as_they_went_in(texts: list[str]) -> None:
    assert pack_texts(texts).texts() == texts


def test_texts_of_several_bytes_per_character_survive_a_cut() -> None:
    texts = ["größer", "", "数字を並べる", "🙂\u200d🙂", "e\u0301"]
    assert pack_texts(texts).take(rows_of([3, 1, 2])).texts() == [texts[3], "", texts[2]]


@pytest.mark.parametrize("lengths", [[1, 1], [2, 2], [4, -1]])
def test_lengths_that_do_not_fit_the_values_are_refused(lengths: list[int]) -> None:
    with pytest.raises(ValueError, match="disagree"):
        Column(np.arange(3), np.array(lengths, dtype=np.int32))


def test_a_column_without_rows_has_no_runs() -> None:
    empty = pack([], np.int32)
    assert empty.num_rows == 0 and empty.runs() == [] and empty.texts() == []
    assert empty.take(rows_of([])) is empty


@settings(deadline=None)
@given(st.lists(st.integers(-2, 4), max_size=5), st.integers(0, 5))
def test_a_range_is_recognized(rows: list[int], size: int) -> None:
    assert is_range(rows_of(rows), size) == (rows == list(range(size)))


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 5)), max_size=6))
def test_positions_of_runs_are_those_of_naive_ranges(runs: list[tuple[int, int]]) -> None:
    starts = rows_of([start for start, _ in runs])
    lengths = np.array([length for _, length in runs], dtype=np.int32)
    naive = [start + offset for start, length in runs for offset in range(length)]
    assert run_positions(starts, lengths).tolist() == naive
