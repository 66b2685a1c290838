from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.partition import (
    WHOLE_GROUPS_PER_PART,
    balanced,
    balanced_groups,
    contiguous,
    micro_batches,
    mini_batches,
)
from rlhf_runtime.dataplane.shards import ShardIndex

from .batches import grouped_indexes, index_of, rows_of

PARTS = st.integers(1, 6)


def loads_of(index: ShardIndex, parts: list[Rows]) -> list[int]:
    return [int(index.lengths[rows].sum()) for rows in parts]


def group_tokens(index: ShardIndex) -> list[int]:
    return [int(index.lengths[index.groups == group].sum()) for group in np.unique(index.groups)]


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_contiguous_parts_put_together_are_the_batch(index: ShardIndex, count: int) -> None:
    parts = contiguous(index, count)
    assert len(parts) == count
    assert np.concatenate(parts).tolist() == index.rows.tolist()


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_contiguous_parts_keep_groups_whole(index: ShardIndex, count: int) -> None:
    seen = [set(index.groups[rows].tolist()) for rows in contiguous(index, count)]
    assert sum(map(len, seen)) == len(set().union(*seen))


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_contiguous_parts_are_within_a_group_of_an_equal_share(
    index: ShardIndex, count: int
) -> None:
    share = float(index.lengths.sum()) / count
    largest = max(group_tokens(index), default=0)
    for load in loads_of(index, contiguous(index, count)):
        assert abs(load - share) <= largest + 1e-9


def test_equal_groups_are_cut_evenly() -> None:
    index = index_of([5] * 16, [row // 4 for row in range(16)])
    assert [len(rows) for rows in contiguous(index, 4)] == [4, 4, 4, 4]
    assert [len(rows) for rows in contiguous(index, 2)] == [8, 8]


@pytest.mark.parametrize(
    ("lengths", "sizes"),
    [([4, 6], [1, 1]), ([6, 4], [1, 1]), ([3, 9, 4], [2, 1]), ([4, 9, 3], [1, 2])],
)
def test_a_cut_is_the_boundary_nearest_to_half_of_the_tokens(
    lengths: list[int], sizes: list[int]
) -> None:
    assert [len(rows) for rows in contiguous(index_of(lengths), 2)] == sizes


def test_fewer_groups_than_parts_leave_parts_empty() -> None:
    index = index_of([1, 1, 1], [7, 7, 9])
    parts = contiguous(index, 5)
    assert sorted(len(rows) for rows in parts) == [0, 0, 0, 1, 2]


def test_a_batch_without_rows_has_empty_parts() -> None:
    assert [len(rows) for rows in contiguous(index_of([]), 3)] == [0, 0, 0]
    assert [len(rows) for rows in balanced(index_of([]), 3)] == [0, 0, 0]
    assert mini_batches(index_of([]), 4) == []


def test_scattered_groups_cannot_be_cut() -> None:
    with pytest.raises(ValueError, match="3 runs of equal group numbers for 2 groups"):
        contiguous(index_of([1, 1, 1], [0, 1, 0]), 2)


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_balanced_parts_hold_every_row_once_in_order(index: ShardIndex, count: int) -> None:
    parts = balanced(index, count)
    assert len(parts) == count
    assert sorted(np.concatenate(parts).tolist()) == index.rows.tolist()
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in parts)
    assert all(rows.dtype == np.int64 for rows in parts)


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_balanced_loads_differ_by_at_most_the_longest_item(index: ShardIndex, count: int) -> None:
    loads = loads_of(index, balanced(index, count))
    whole = len(group_tokens(index)) >= WHOLE_GROUPS_PER_PART * count
    items = group_tokens(index) if whole else index.lengths.tolist()
    assert count == 1 or max(loads) - min(loads) <= max(items, default=0)


def test_many_groups_stay_whole_and_few_are_split() -> None:
    many = index_of([5, 1, 3] * 16, np.repeat(np.arange(16), 3).tolist())
    parts = balanced(many, 2)
    held = [set(many.groups[rows].tolist()) for rows in parts]
    assert held[0] | held[1] == set(range(16)) and not held[0] & held[1]
    assert loads_of(many, parts) == [72, 72]
    few = index_of([5, 5, 5, 5], [0, 0, 0, 0])
    assert loads_of(few, balanced(few, 2)) == [10, 10]


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_whole_groups_are_balanced_however_few_there_are(index: ShardIndex, count: int) -> None:
    parts = balanced_groups(index, count)
    assert sorted(np.concatenate(parts).tolist()) == index.rows.tolist()
    held = [set(index.groups[rows].tolist()) for rows in parts]
    assert sum(map(len, held)) == len(set().union(*held)), "a group lies in several parts"
    loads = loads_of(index, parts)
    assert count == 1 or max(loads) - min(loads) <= max(group_tokens(index), default=0)


@settings(deadline=None)
@given(grouped_indexes(), PARTS, st.randoms(use_true_random=False))
def test_balance_does_not_depend_on_the_order_of_the_index(
    index: ShardIndex, count: int, random: Random
) -> None:
    order = list(range(len(index.rows)))
    random.shuffle(order)
    shuffled = index.take(rows_of(order))
    assert [rows.tolist() for rows in balanced(shuffled, count)] == [
        rows.tolist() for rows in balanced(index, count)
    ]


def test_balance_is_longest_first_to_the_least_loaded() -> None:
    # By hand: 9 -> a, 7 -> b, 6 -> b (13), 5 -> a (14), 2 -> b (15), 1 -> a (15).
    parts = balanced(index_of([2, 9, 6, 1, 7, 5]), 2)
    assert [rows.tolist() for rows in parts] == [[1, 3, 5], [0, 2, 4]]


def test_a_part_of_a_batch_keeps_its_row_numbers() -> None:
    index = index_of([4, 4, 4, 4]).take(np.array([1, 3]))
    assert sorted(np.concatenate(balanced(index, 2)).tolist()) == [1, 3]


@settings(deadline=None)
@given(grouped_indexes(), st.integers(1, 5))
def test_mini_batches_are_groups_in_order(index: ShardIndex, size: int) -> None:
    batches = mini_batches(index, size)
    groups = sorted(set(index.groups.tolist()))
    expected = [groups[begin : begin + size] for begin in range(0, len(groups), size)]
    assert [sorted(set(batch.groups.tolist())) for batch in batches] == expected
    rows = [row for batch in batches for row in batch.rows.tolist()]
    assert sorted(rows) == index.rows.tolist()
    for batch in batches:
        assert batch.lengths.tolist() == index.lengths[batch.rows].tolist()


@settings(deadline=None)
@given(grouped_indexes(), st.integers(1, 5), PARTS)
def test_a_mini_batch_is_the_same_set_of_rows_on_any_number_of_ranks(
    index: ShardIndex, size: int, ranks: int
) -> None:
    for batch in mini_batches(index, size):
        held = np.concatenate(balanced(batch, ranks))
        assert sorted(held.tolist()) == sorted(batch.rows.tolist())


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 60))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = micro_batches(np.array(lengths, dtype=np.int32), limit)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[row] for row in batch.tolist())
        assert len(batch) == 1 or padded <= limit


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=40), st.integers(1, 99))
def test_units_stay_in_one_micro_batch(rows: list[tuple[int, int]], limit: int) -> None:
    lengths, units = ([row[place] for row in rows] for place in (0, 1))
    batches = micro_batches(np.array(lengths, dtype=np.int32), limit, np.array(units, dtype=int))
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(rows)))
    held = [{units[row] for row in batch.tolist()} for batch in batches]
    assert sum(map(len, held)) == len(set(units))
    for batch, of_batch in zip(batches, held, strict=True):
        assert len(of_batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= limit


def test_a_row_above_the_limit_is_alone() -> None:
    batches = micro_batches(np.array([50, 2, 60, 3]), 10)
    assert [batch.tolist() for batch in batches] == [[1, 3], [0], [2]]


def test_rows_of_a_micro_batch_are_alike_in_length() -> None:
    batches = micro_batches(np.array([9, 1, 8, 2, 9, 1]), 27)
    assert [batch.tolist() for batch in batches] == [[1, 5, 3], [2, 0, 4]]
