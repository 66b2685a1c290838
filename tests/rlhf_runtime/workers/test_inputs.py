from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.plan import CallKind, GraphName
from rlhf_flow.calls import ModelCall
from rlhf_runtime.dataplane.columns import Column, Rows, pack
from rlhf_runtime.dataplane.partition import Extent
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.workers.inputs import Inputs
from rlhf_runtime.workers.orders import Order, Source

LENGTHS = np.array([3, 0, 5, 2, 2, 1], dtype=np.int32)
GROUPS = np.array([0, 0, 1, 1, 2, 2])
NUM_ROWS = len(LENGTHS)
EXTENT = Extent(3, 2)


def tokens(row: int) -> list[int]:
    """What the packed column `tokens` has for a row."""
    return [100 * row + place for place in range(int(LENGTHS[row]))]


def index_of(rows: Sequence[int]) -> ShardIndex:
    numbers = np.array(rows, dtype=np.int64)
    return ShardIndex(numbers, GROUPS[numbers], LENGTHS[numbers])


def shard_of(rows: Sequence[int]) -> Shard:
    """A shard with both columns."""
    scores = Column(np.array(rows, dtype=np.float32) / 2)
    packed = pack([tokens(row) for row in rows], np.int32)
    return Shard(index_of(rows), {"tokens": packed, "scores": scores})


class Cut:
    """A way to cut the batch: for each number the shards of both columns."""

    def __init__(self, *cuts: Sequence[Sequence[int]]) -> None:
        self.sources: list[Source] = []
        self.shards: list[Shard] = []
        for number, cut in enumerate(cuts):
            names = {f"{form}_{number}": form for form in ("tokens", "scores")}
            self.add(Source(len(cut), names), [shard_of(rows) for rows in cut])

    def add(self, source: Source, shards: Sequence[Shard]) -> None:
        self.sources.append(source)
        self.shards += shards

    def inputs(
        self,
        at: Coordinates | None = None,
        kind: CallKind = CallKind.COMPUTE,
        groups_per_batch: int | None = None,
    ) -> Inputs:
        reads = tuple(name for source in self.sources for name in source.names)
        call = ModelCall("compute", None, "compute", kind, reads, ("made",))
        sources = tuple(self.sources)
        order = Order(call, 4, GraphName.STEP, "one", EXTENT, groups_per_batch, sources)
        return Inputs(order, self.shards, at or Coordinates(0, 1))


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
    baseline = np.array([7.0, 8.0, 9.0], dtype=np.float32)
    prompts = [
        Shard(
            ShardIndex(np.array(rows), np.array(rows), np.ones(len(rows), np.int32)),
            {"mean": Column(baseline[rows])},
        )
        for rows in ([2], [0, 1])
    ]
    cut, alone, repeated = Cut(PERMUTED), Cut(), Source(2, {"baseline": "mean"}, repeat=2)
    cut.add(repeated, prompts)
    assert cut.inputs().index.lengths.tolist() == LENGTHS.tolist()
    assert cut.inputs().load(np.array([5, 0, 3]))["baseline"].values.tolist() == [9.0, 7.0, 8.0]
    alone.add(repeated, prompts)
    assert alone.inputs().index.rows.tolist() == list(range(6))
    assert alone.inputs().index.groups.tolist() == [0, 0, 1, 1, 2, 2]


def test_the_first_source_describes_the_batch_whatever_else_is_sent_along() -> None:
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


def test_ranks_that_infer_balance_their_tokens() -> None:
    cut = Cut(PERMUTED)
    parts = [cut.inputs(Coordinates(rank, 2), CallKind.INFER).rows() for rank in range(2)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(NUM_ROWS))
    loads = [int(LENGTHS[rows].sum()) for rows in parts]
    assert loads == [7, 6], "5 and 2; 3, 2 and 1"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_mini_batches_are_the_same_rows_on_any_number_of_ranks(ranks: int) -> None:
    found = [
        Cut(TWO).inputs(Coordinates(rank, ranks), CallKind.TRAIN, 2).mini_batches()
        for rank in range(ranks)
    ]
    batches = [sorted(np.concatenate(parts).tolist()) for parts in zip(*found, strict=True)]
    assert batches == [[0, 1, 4, 5], [2, 3]], "every second group"


def test_tensor_ranks_of_a_replica_read_the_same_rows() -> None:
    cut = Cut(TWO)
    first, second = (cut.inputs(Coordinates(1, 2, tensor, 2)).rows() for tensor in range(2))
    assert first.tolist() == second.tolist() != []


def test_a_rank_whose_rows_lie_in_one_shard_gets_it_without_a_copy() -> None:
    cut = Cut(TWO)
    columns = cut.inputs().load(np.array([3, 4, 5]))
    assert columns["tokens_0"] is cut.shards[1].columns["tokens"]


def test_rows_that_were_not_sent_are_refused() -> None:
    cut = Cut(TWO, [[0, 1]])
    with pytest.raises(ValueError, match=r"no shard holds: got \[2\]"):
        cut.inputs().load(np.array([1, 2]))
    with pytest.raises(ValueError, match=r"no shard holds: got \[3 4 5\]|\[3, 4, 5\]"):
        Cut([[0, 1, 2]]).inputs(kind=CallKind.TRAIN).mini_batches()


def test_a_call_that_reads_nothing_loads_nothing() -> None:
    cut = Cut()
    cut.add(Source(1, {}), [shard_of(range(NUM_ROWS))])
    inputs = cut.inputs(kind=CallKind.TRAIN)
    assert inputs.rows().tolist() == list(range(NUM_ROWS))
    assert inputs.load(inputs.rows()) == {}
