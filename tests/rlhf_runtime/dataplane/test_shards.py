import pickle
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.dataplane.columns import Column, Rows, pack
from rlhf_runtime.dataplane.shards import Shard, ShardIndex, merge_indices, plan_gather

from .batches import index_of, rows_of, shardings


class Shelf:
    """Shards of one column, which count how often and for what they are fetched."""

    def __init__(self, held: Sequence[Rows], *, packed: bool) -> None:
        self.asked: list[list[int]] = []
        self.columns = [self._column(rows, packed) for rows in held]

    @staticmethod
    def value(row: int) -> list[int]:
        """What the column has for a row."""
        return [10 * row + place for place in range(row % 4)]

    def _column(self, rows: Rows, packed: bool) -> Column:
        if packed:
            return pack([self.value(row) for row in rows.tolist()], np.int32)
        return Column(rows * 10)

    def gather(self, rows: Sequence[int], held: Sequence[Rows]) -> Column:
        """The given rows in order, from the shards that hold one of them."""
        location = plan_gather(rows_of(rows), held)
        return location.gather(self.fetch(location.shards))

    def fetch(self, numbers: Sequence[int]) -> list[Column]:
        self.asked.append(list(numbers))
        return [self.columns[number] for number in numbers]


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[Rows], list[int]]:
    """A sharding, and some of its rows in any order, repeated or not."""
    held = draw(shardings())
    total = sum(map(len, held))
    rows = st.lists(st.integers(0, total - 1), max_size=10) if total else st.just([])
    return held, draw(rows)


@settings(deadline=None)
@given(requests())
def test_gathering_packed_rows_is_a_dictionary_lookup(case: tuple[list[Rows], list[int]]) -> None:
    held, rows = case
    shelf = Shelf(held, packed=True)
    gathered = shelf.gather(rows, held)
    assert [run.tolist() for run in gathered.runs()] == [Shelf.value(row) for row in rows]


@settings(deadline=None)
@given(requests())
def test_gathering_plain_rows_is_a_dictionary_lookup(case: tuple[list[Rows], list[int]]) -> None:
    held, rows = case
    shelf = Shelf(held, packed=False)
    gathered = shelf.gather(rows, held)
    assert gathered.values.tolist() == [10 * row for row in rows]
    assert gathered.values.dtype == np.int64


@settings(deadline=None)
@given(requests())
def test_only_shards_with_a_wanted_row_are_fetched_and_all_at_once(
    case: tuple[list[Rows], list[int]],
) -> None:
    held, rows = case
    shelf = Shelf(held, packed=True)
    shelf.gather(rows, held)
    needed = [number for number, shard in enumerate(held) if set(shard.tolist()) & set(rows)]
    assert shelf.asked == [needed or [0]]


@pytest.mark.parametrize("number", [0, 1])
def test_a_whole_shard_is_not_copied(number: int) -> None:
    held = [rows_of([4, 0, 2]), rows_of([1, 3])]
    shelf = Shelf(held, packed=True)
    assert shelf.gather(held[number].tolist(), held) is shelf.columns[number]


def test_consecutive_rows_of_one_shard_are_not_copied() -> None:
    held = [rows_of(range(4)), rows_of(range(4, 8))]
    shelf = Shelf(held, packed=True)
    gathered = shelf.gather([5, 6], held)
    assert np.shares_memory(gathered.values, shelf.columns[1].values)


def test_no_rows_keep_the_type_of_the_column() -> None:
    held = [rows_of([0, 1]), rows_of([2])]
    shelf = Shelf(held, packed=True)
    gathered = shelf.gather([], held)
    assert gathered.num_rows == 0 and gathered.values.dtype == np.int32


@pytest.mark.parametrize("row", [-2, -1, 1, 3, 99])
def test_a_row_that_no_shard_holds_is_named(row: int) -> None:
    held = [rows_of([0]), rows_of([2])]
    with pytest.raises(ValueError, match=rf"rows that no shard holds: got \[{row}\]"):
        plan_gather(rows_of([0, row]), held)


def test_rows_of_an_empty_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="no shard holds"):
        plan_gather(rows_of([0]), [rows_of([])])


@settings(deadline=None)
@given(shardings(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), min_size=12))
def test_merged_shards_are_the_batch_in_order(
    held: list[Rows], described: list[tuple[int, int]]
) -> None:
    total = sum(map(len, held))
    whole = index_of(
        [length for _, length in described[:total]], [group for group, _ in described[:total]]
    )
    merged = merge_indices([whole.take(rows) for rows in held])
    assert merged.rows.tolist() == list(range(total))
    assert merged.groups.tolist() == whole.groups.tolist()
    assert merged.lengths.tolist() == whole.lengths.tolist()


def test_one_shard_in_order_is_not_copied() -> None:
    whole = index_of([3, 1, 2])
    assert merge_indices([whole]) is whole


def test_some_shards_of_a_batch_are_merged_in_order() -> None:
    whole = index_of([3, 1, 2, 5, 4], [0, 0, 1, 1, 2])
    merged = merge_indices([whole.take(rows_of([4, 1])), whole.take(rows_of([3]))])
    assert merged.rows.tolist() == [1, 3, 4]
    assert merged.groups.tolist() == [0, 1, 2] and merged.lengths.tolist() == [1, 5, 4]
    alone = merge_indices([whole.take(rows_of([4, 1]))])
    assert alone.rows.tolist() == [1, 4], "one that is not in order is put in order"


@pytest.mark.parametrize("rows", [[[0, 1], [1, 2]], [[2, 2]]], ids=["two shards", "one shard"])
def test_a_row_that_is_there_twice_is_refused(rows: list[list[int]]) -> None:
    whole = index_of([1, 1, 1])
    with pytest.raises(ValueError, match=rf"a row twice: got row {rows[-1][0]} "):
        merge_indices([whole.take(rows_of(each)) for each in rows])


def test_entries_are_found_by_row_and_missing_rows_are_named() -> None:
    index = index_of([3, 1, 2, 5]).take(rows_of([1, 3]))
    assert index.find(rows_of([3, 1, 3])).lengths.tolist() == [5, 1, 5]
    assert index.find(rows_of([])).rows.tolist() == []
    for row in (0, 2, 4):
        with pytest.raises(ValueError, match=rf"no shard holds: got \[{row}\], allowed the 2"):
            index.find(rows_of([1, row]))
    with pytest.raises(ValueError, match="no shard holds"):
        index_of([]).find(rows_of([0]))


def test_a_shard_travels_as_one_object() -> None:
    index = index_of([3, 1], [7, 7])
    sent = Shard(index, {"scores": Column(np.array([1.0, 2.0]))})
    got = pickle.loads(pickle.dumps(sent))
    assert isinstance(got, Shard)
    assert got.columns["scores"].values.tolist() == [1.0, 2.0]
    for name in ("rows", "groups", "lengths"):
        assert getattr(got.index, name).tolist() == getattr(index, name).tolist()


def test_an_index_describes_each_row_once() -> None:
    with pytest.raises(ValueError, match="2 rows, 1 groups and 2 lengths"):
        ShardIndex(rows_of([0, 1]), rows_of([0]), np.ones(2, dtype=np.int32))
