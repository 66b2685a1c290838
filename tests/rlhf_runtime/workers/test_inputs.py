from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.plan import CallKind, GraphName
from rlhf_flow.calls import ModelCall
from rlhf_runtime.dataplane.columns import Column, Rows, pack
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import ShardIndex
from rlhf_runtime.workers.inputs import Inputs
from rlhf_runtime.workers.orders import ColumnRef, Order, Source

Shelf = dict[ColumnRef, Column]
"""Columns behind references, which are their names and shard numbers."""

LENGTHS = np.array([3, 0, 5, 2, 2, 1], dtype=np.int32)
GROUPS = np.array([0, 0, 1, 1, 2, 2])
NUM_ROWS = len(LENGTHS)


def tokens(row: int) -> list[int]:
    """What the packed column `tokens` has for a row."""
    return [100 * row + place for place in range(int(LENGTHS[row]))]


def index_of(rows: Sequence[int]) -> ShardIndex:
    numbers = np.array(rows, dtype=np.int64)
    return ShardIndex(numbers, GROUPS[numbers], LENGTHS[numbers])


class Cut:
    """A way to cut the batch: shards of both columns, and a count of round trips for them."""

    def __init__(self, *cuts: Sequence[Sequence[int]]) -> None:
        self.round_trips: list[list[ColumnRef]] = []
        self.indexes: list[ShardIndex] = []
        self.sources: list[Source] = []
        self._shelf: Shelf = {}
        for number, cut in enumerate(cuts):
            self._add(number, cut)

    def _add(self, number: int, cut: Sequence[Sequence[int]]) -> None:
        refs: dict[str, tuple[ColumnRef, ...]] = {}
        for form in ("tokens", "scores"):
            name = f"{form}_{number}"
            refs[name] = tuple((name, shard) for shard in range(len(cut)))
            for ref, rows in zip(refs[name], cut, strict=True):
                self._shelf[ref] = (
                    pack([tokens(row) for row in rows], np.int32)
                    if form == "tokens"
                    else Column(np.array(rows, dtype=np.float32) / 2)
                )
        self.sources.append(Source(len(self.indexes), refs))
        self.indexes.extend(index_of(rows) for rows in cut)

    def fetch(self, refs: Sequence[ColumnRef]) -> list[Column]:
        self.round_trips.append(list(refs))
        return [self._shelf[ref] for ref in refs]

    def inputs(self, at: Coordinates | None = None, kind: CallKind = CallKind.INFER) -> Inputs:
        reads = tuple(name for source in self.sources for name in source.columns)
        call = ModelCall("actor.log_probs", "actor", "log_probs", kind, reads, ("log_probs",))
        order = Order(call, 4, GraphName.STEP, "one", tuple(self.sources))
        return Inputs(order, self.indexes, at or Coordinates(0, 1), self.fetch)


def check(columns: dict[str, Column], rows: Rows) -> None:
    """Whether every column has the given rows' values."""
    for name, column in columns.items():
        if name.startswith("tokens"):
            assert [run.tolist() for run in column.runs()] == [tokens(row) for row in rows]
        else:
            assert column.values.tolist() == [row / 2 for row in rows]


TWO, THREE, PERMUTED = [[0, 1, 2], [3, 4, 5]], [[0, 1], [2, 3], [4, 5]], [[5, 0, 3], [], [4, 2, 1]]


@settings(deadline=None)
@given(st.lists(st.integers(0, NUM_ROWS - 1), max_size=8))
def test_columns_cut_differently_come_out_aligned(wanted: list[int]) -> None:
    rows = np.array(wanted, dtype=np.int64)
    columns = Cut(TWO, THREE, PERMUTED).inputs().load(rows)
    assert len(columns) == 6
    check(columns, rows)


def test_a_broadcast_column_has_its_rows_value_in_each_of_their_samples() -> None:
    """Three prompts of two rows each: the prompts' column is cut otherwise, and elsewhere."""
    cut = Cut(PERMUTED)
    baseline = np.array([7.0, 8.0, 9.0], dtype=np.float32)
    for shard, rows in enumerate([[2], [0, 1]]):
        cut._shelf["baseline", shard] = Column(baseline[rows])
        cut.indexes.append(ShardIndex(np.array(rows), np.array(rows), np.ones(len(rows), np.int32)))
    cut.sources.append(Source(3, {"baseline": (("baseline", 0), ("baseline", 1))}, repeat=2))
    inputs = cut.inputs()
    assert inputs.index.lengths.tolist() == LENGTHS.tolist()
    columns = inputs.load(np.array([5, 0, 3]))
    assert columns["baseline"].values.tolist() == [9.0, 7.0, 8.0]
    alone = Cut()
    alone.indexes, alone.sources = cut.indexes[3:], [Source(0, cut.sources[-1].columns, repeat=2)]
    alone._shelf = cut._shelf
    assert alone.inputs().index.rows.tolist() == list(range(6))
    assert alone.inputs().index.groups.tolist() == [0, 0, 1, 1, 2, 2]


def test_all_columns_come_in_one_round_trip_and_only_from_shards_that_are_needed() -> None:
    cut = Cut(TWO, THREE, PERMUTED)
    cut.inputs().load(np.array([2, 4]))
    (refs,) = cut.round_trips
    shards = {(name, number) for name, number in refs}
    assert len(shards) == len(refs)
    assert {shard for shard in shards if shard[0] == "tokens_0"} == {
        ("tokens_0", 0),
        ("tokens_0", 1),
    }
    assert {shard for shard in shards if shard[0] == "scores_1"} == {
        ("scores_1", 1),
        ("scores_1", 2),
    }
    assert {shard for shard in shards if shard[0] == "tokens_2"} == {("tokens_2", 2)}


def test_nothing_is_fetched_before_it_is_asked_for() -> None:
    cut = Cut(TWO)
    cut.inputs().rows()
    assert cut.round_trips == []


def test_the_base_describes_the_batch_whatever_else_is_sent_along() -> None:
    inputs = Cut(PERMUTED, TWO).inputs()
    assert inputs.index.rows.tolist() == list(range(NUM_ROWS))
    assert inputs.index.groups.tolist() == GROUPS.tolist()
    assert inputs.index.lengths.tolist() == LENGTHS.tolist()


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_ranks_share_the_rows_with_groups_whole(ranks: int) -> None:
    cut = Cut(TWO, PERMUTED)
    parts = [cut.inputs(Coordinates(rank, ranks)).rows() for rank in range(ranks)]
    assert np.concatenate(parts).tolist() == list(range(NUM_ROWS))
    owners = [set(GROUPS[rows].tolist()) for rows in parts]
    assert sum(map(len, owners)) == len(set(GROUPS.tolist()))
    for rank, rows in enumerate(parts):
        check(cut.inputs(Coordinates(rank, ranks)).load(rows), rows)


def test_tensor_ranks_of_a_replica_read_the_same_rows() -> None:
    cut = Cut(TWO)
    first, second = (cut.inputs(Coordinates(1, 2, tensor, 2)).rows() for tensor in range(2))
    assert first.tolist() == second.tolist() != []


def test_a_rank_whose_rows_lie_in_one_shard_gets_it_without_a_copy() -> None:
    cut = Cut(TWO)
    columns = cut.inputs().load(np.array([3, 4, 5]))
    assert columns["tokens_0"] is cut.fetch([("tokens_0", 1)])[0]


def test_rows_that_a_column_lacks_are_refused() -> None:
    inputs = Cut(TWO, [[0, 1]]).inputs()
    with pytest.raises(ValueError, match=r"no shard holds: got \[2\]"):
        inputs.load(np.array([1, 2]))


def test_a_call_that_reads_nothing_loads_nothing() -> None:
    call = ModelCall("actor.train", "actor", "train", CallKind.TRAIN, (), ())
    order = Order(call, 1, GraphName.STEP, "one")
    inputs = Inputs(order, [index_of(range(NUM_ROWS))], Coordinates(0, 1), lambda refs: [])
    assert inputs.load(inputs.rows()) == {}
