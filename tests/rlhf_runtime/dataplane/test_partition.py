from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.micro_batches import cut_micro_batches
from rlhf_runtime.dataplane.partition import (
    UNSPLIT_GROUPS_PER_SLICE,
    WINDOW_PARTS,
    BatchShape,
    Slice,
    balance_tokens,
    balancing_window,
    contiguous_rows,
)
from rlhf_runtime.dataplane.shards import ShardIndex

from .batches import grouped_indexes, index_of, rows_of

PARTS = st.integers(1, 6)
SAMPLES = st.integers(1, 5)
GROUPS = st.builds(range, st.integers(0, 5), st.integers(0, 90), st.integers(1, 4))
"""Groups of a mini-batch: every n-th."""


def loads_of(index: ShardIndex, parts: list[Rows]) -> list[int]:
    return [int(index.lengths[rows].sum()) for rows in parts]


def group_tokens(index: ShardIndex) -> list[int]:
    return [int(index.lengths[index.groups == group].sum()) for group in np.unique(index.groups)]


def parts_of(groups: range, rows_per_group: int, count: int) -> list[Rows]:
    return [contiguous_rows(groups, rows_per_group, Slice(n, count)).rows() for n in range(count)]


def all_rows(groups: range, rows_per_group: int) -> list[int]:
    """Row numbers of groups, in order, by the definition."""
    return [g * rows_per_group + sample for g in groups for sample in range(rows_per_group)]


@settings(deadline=None)
@given(GROUPS, SAMPLES, PARTS)
def test_contiguous_parts_put_together_are_the_groups(
    groups: range, samples: int, count: int
) -> None:
    parts = parts_of(groups, samples, count)
    assert np.concatenate(parts).tolist() == all_rows(groups, samples)
    sizes = [len(rows) for rows in parts]
    assert max(sizes) - min(sizes) in (0, samples), "whole groups, equally many or one more"
    assert all(size % samples == 0 for size in sizes)


@settings(deadline=None)
@given(GROUPS, SAMPLES, st.integers(1, 30))
def test_windows_put_together_are_the_groups(groups: range, samples: int, count: int) -> None:
    firsts = range(0, count, WINDOW_PARTS)
    windows = [balancing_window(groups, samples, Slice(first, count)) for first in firsts]
    rows = [row for each in windows for row in each.span.rows().tolist()]
    assert rows == all_rows(groups, samples)
    for first, found in zip(firsts, windows, strict=True):
        expected = len(rows) * found.batch_slice.count / count
        slack = samples if len(groups) >= UNSPLIT_GROUPS_PER_SLICE * count else 1
        assert abs(len(found.span.rows()) - expected) <= slack
        for number in range(first, min(first + WINDOW_PARTS, count)):
            same = balancing_window(groups, samples, Slice(number, count))
            assert (same.span, same.batch_slice.index) == (found.span, number - first)


@settings(deadline=None)
@given(GROUPS, SAMPLES, st.integers(1, 30), st.data())
def test_the_bounds_of_a_span_are_its_first_and_last_row(
    groups: range, samples: int, count: int, data: st.DataObject
) -> None:
    batch_slice = Slice(data.draw(st.integers(0, count - 1)), count)
    for span in (
        contiguous_rows(groups, samples, batch_slice),
        balancing_window(groups, samples, batch_slice).span,
    ):
        rows = span.rows().tolist()
        bounds = range(rows[0], rows[-1] + 1) if rows else range(0)
        assert span.bounds == bounds


def test_many_groups_are_in_one_window_each_and_few_are_cut() -> None:
    many = [balancing_window(range(128), 3, Slice(number, 16)).span.rows() for number in (0, 15)]
    assert [(int(rows[0]), int(rows[-1])) for rows in many] == [(0, 191), (192, 383)]
    few = balancing_window(range(2), 5, Slice(15, 16)).span.rows()
    assert few.tolist() == [5, 6, 7, 8, 9]


@settings(deadline=None)
@given(GROUPS, SAMPLES, st.integers(1, 30))
def test_groups_that_are_to_be_whole_are_in_one_window(
    groups: range, samples: int, count: int
) -> None:
    windows = [
        balancing_window(groups, samples, Slice(first, count), keep_groups=True).span.rows()
        for first in range(0, count, WINDOW_PARTS)
    ]
    assert np.concatenate(windows).tolist() == all_rows(groups, samples)
    held = [set((rows // samples).tolist()) for rows in windows]
    assert sum(map(len, held)) == len(groups)


def test_fewer_groups_than_parts_leave_parts_empty() -> None:
    assert sorted(len(rows) for rows in parts_of(range(2), 3, 5)) == [0, 0, 0, 3, 3]


def test_a_batch_without_rows_has_empty_parts() -> None:
    assert [len(rows) for rows in parts_of(range(0), 2, 3)] == [0, 0, 0]
    assert [len(rows) for rows in balance_tokens(index_of([]), 3)] == [0, 0, 0]
    assert [len(groups) for groups in BatchShape(0).mini_batches(4)] == [0, 0, 0, 0]


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 9))
def test_mini_batches_have_every_group_once_and_are_alike_in_size(groups: int, count: int) -> None:
    batches = BatchShape(groups, 3).mini_batches(count)
    assert sorted(g for batch in batches for g in batch) == list(range(groups))
    assert len(batches) == count
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


def test_every_mini_batch_has_some_of_any_neighbours() -> None:
    assert [list(batch) for batch in BatchShape(8).mini_batches(3)] == [
        [0, 3, 6],
        [1, 4, 7],
        [2, 5],
    ]
    assert BatchShape(8).mini_batches(1) == [range(8)]


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_balanced_parts_hold_every_row_once_in_order(index: ShardIndex, count: int) -> None:
    parts = balance_tokens(index, count)
    assert len(parts) == count
    assert sorted(np.concatenate(parts).tolist()) == index.rows.tolist()
    assert all(rows.tolist() == sorted(rows.tolist()) for rows in parts)
    assert all(rows.dtype == np.int64 for rows in parts)


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_balanced_loads_differ_by_at_most_the_longest_item(index: ShardIndex, count: int) -> None:
    loads = loads_of(index, balance_tokens(index, count))
    whole = len(group_tokens(index)) >= UNSPLIT_GROUPS_PER_SLICE * count
    items = group_tokens(index) if whole else index.lengths.tolist()
    assert count == 1 or max(loads) - min(loads) <= max(items, default=0)


def test_many_groups_stay_whole_and_few_are_split() -> None:
    many = index_of([5, 1, 3] * 16, np.repeat(np.arange(16), 3).tolist())
    parts = balance_tokens(many, 2)
    held = [set(many.groups[rows].tolist()) for rows in parts]
    assert held[0] | held[1] == set(range(16)) and not held[0] & held[1]
    assert loads_of(many, parts) == [72, 72]
    few = index_of([5, 5, 5, 5], [0, 0, 0, 0])
    assert loads_of(few, balance_tokens(few, 2)) == [10, 10]


@settings(deadline=None)
@given(grouped_indexes(), PARTS)
def test_whole_groups_are_balanced_however_few_there_are(index: ShardIndex, count: int) -> None:
    parts = balance_tokens(index, count, keep_groups=True)
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
    assert [rows.tolist() for rows in balance_tokens(shuffled, count)] == [
        rows.tolist() for rows in balance_tokens(index, count)
    ]


def test_balance_is_longest_first_to_the_least_loaded() -> None:
    # By hand: 9 -> a, 7 -> b, 6 -> b (13), 5 -> a (14), 2 -> b (15), 1 -> a (15).
    parts = balance_tokens(index_of([2, 9, 6, 1, 7, 5]), 2)
    assert [rows.tolist() for rows in parts] == [[1, 3, 5], [0, 2, 4]]


def test_a_part_of_a_batch_keeps_its_row_numbers() -> None:
    index = index_of([4, 4, 4, 4]).take(np.array([1, 3]))
    assert sorted(np.concatenate(balance_tokens(index, 2)).tolist()) == [1, 3]


@settings(deadline=None)
@given(st.lists(st.integers(0, 30), max_size=40), st.integers(1, 60))
def test_micro_batches_hold_every_row_once_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = cut_micro_batches(np.array(lengths, dtype=np.int32), limit)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(lengths)))
    for batch in batches:
        padded = len(batch) * max(lengths[row] for row in batch.tolist())
        assert len(batch) == 1 or padded <= limit


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=40), st.integers(1, 99))
def test_units_stay_in_one_micro_batch(rows: list[tuple[int, int]], limit: int) -> None:
    lengths, units = ([row[place] for row in rows] for place in (0, 1))
    sizes = np.array(lengths, dtype=np.int32)
    batches = cut_micro_batches(sizes, limit, np.array(units, dtype=int))
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(rows)))
    held = [{units[row] for row in batch.tolist()} for batch in batches]
    assert sum(map(len, held)) == len(set(units))
    for batch, of_batch in zip(batches, held, strict=True):
        assert len(of_batch) == 1 or len(batch) * max(lengths[row] for row in batch) <= limit


def test_a_row_above_the_limit_is_alone() -> None:
    batches = cut_micro_batches(np.array([50, 2, 60, 3]), 10)
    assert [batch.tolist() for batch in batches] == [[1, 3], [0], [2]]


def test_rows_of_a_micro_batch_are_alike_in_length() -> None:
    batches = cut_micro_batches(np.array([9, 1, 8, 2, 9, 1]), 27)
    assert [batch.tolist() for batch in batches] == [[1, 5, 3], [2, 0, 4]]
