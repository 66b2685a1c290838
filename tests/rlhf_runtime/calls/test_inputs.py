from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.dataplane.columns import Column, Rows, pack
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex

LENGTHS = np.array([3, 0, 5, 2, 2, 1], dtype=np.int32)
GROUPS = np.array([0, 0, 1, 1, 2, 2])
NUM_ROWS = len(LENGTHS)
EXTENT = BatchShape(3, 2)


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
        self.sources: list[ColumnSource] = []
        self.shards: list[Shard] = []
        for number, cut in enumerate(cuts):
            names = {f"{form}_{number}": form for form in ("tokens", "scores")}
            self.add(Segment(len(cut), names), [shard_of(rows) for rows in cut])

    def add(self, part: Segment, shards: Sequence[Shard]) -> None:
        self.sources.append(ColumnSource((part,)))
        self.shards += shards

    def inputs(
        self,
        at: Coordinates | None = None,
        kind: CallKind = CallKind.COMPUTE,
        mini_batches: int = 1,
    ) -> CallInputs:
        reads = tuple(name for source in self.sources for name in source.segments[0].names)
        call = ModelCall("compute", None, "compute", kind, reads, ("made",))
        batch = InputBatch(EXTENT, tuple(self.sources))
        request = CallRequest(call, 4, GraphName.STEP, "one", (batch,), mini_batches)
        return CallInputs(request, self.shards, at or Coordinates(0, 1))


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
    cut, alone, repeated = Cut(PERMUTED), Cut(), Segment(2, {"baseline": "mean"}, repeat=2)
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
    segments = [cut.inputs(Coordinates(rank, ranks)).rows() for rank in range(ranks)]
    assert np.concatenate(segments).tolist() == list(range(NUM_ROWS))
    owners = [set(GROUPS[rows].tolist()) for rows in segments]
    assert sum(map(len, owners)) == len(set(GROUPS.tolist()))
    for rank, rows in enumerate(segments):
        check(cut.inputs(Coordinates(rank, ranks)).load(rows), rows)


def test_ranks_that_infer_balance_their_tokens() -> None:
    cut = Cut(PERMUTED)
    segments = [cut.inputs(Coordinates(rank, 2), CallKind.INFER).rows() for rank in range(2)]
    assert sorted(np.concatenate(segments).tolist()) == list(range(NUM_ROWS))
    loads = [int(LENGTHS[rows].sum()) for rows in segments]
    assert loads == [7, 6], "5 and 2; 3, 2 and 1"


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_mini_batches_are_the_same_rows_on_any_number_of_ranks(ranks: int) -> None:
    found = [
        Cut(TWO).inputs(Coordinates(rank, ranks), CallKind.TRAIN, 2).mini_batches()
        for rank in range(ranks)
    ]
    batches = [sorted(np.concatenate(segments).tolist()) for segments in zip(*found, strict=True)]
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


ROUNDS = st.lists(
    st.lists(st.booleans(), min_size=NUM_ROWS, max_size=NUM_ROWS), min_size=1, max_size=4
)


@settings(deadline=None)
@given(ROUNDS, st.data())
def test_rows_put_one_after_the_other_are_those_of_their_calls(
    rounds: list[list[bool]], data: st.DataObject
) -> None:
    """Each round has the six rows, cut in two at random; columns of another name every time."""
    segments, shards = [], []
    for number, where in enumerate(rounds):
        halves = [[row for row in range(NUM_ROWS) if where[row] is side] for side in (True, False)]
        segments.append(Segment(2, {"tokens": "tokens", "numbers": f"n{number}"}, 1, number * 3))
        for rows in halves:
            held = shard_of(rows)
            named = {f"n{number}": Column(np.array(rows) + 100 * number)}
            shards.append(Shard(held.index, {"tokens": held.columns["tokens"], **named}))
    count = NUM_ROWS * len(rounds)
    wanted = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=9)), dtype=np.int64)
    batch = InputBatch(BatchShape(3 * len(rounds), 2), (ColumnSource(tuple(segments)),))
    call = ModelCall("train", "actor", "train", CallKind.TRAIN, ("numbers", "tokens"), ())
    request = CallRequest(call, 1, GraphName.STEP, "one", (batch,), 2)
    inputs = CallInputs(request, shards, Coordinates(0, 1))
    assert inputs.index.rows.tolist() == list(range(count))
    assert inputs.index.groups.tolist() == np.repeat(np.arange(3 * len(rounds)), 2).tolist()
    found = inputs.load(wanted)
    round_of, row = np.divmod(wanted, NUM_ROWS)
    assert found["numbers"].values.tolist() == (row + 100 * round_of).tolist()
    check({"tokens": found["tokens"]}, row)
    assert sorted(np.concatenate(inputs.mini_batches()).tolist()) == list(range(count))


def test_a_broadcast_column_lies_behind_the_rows_before_it() -> None:
    scores = [
        Shard(ShardIndex(*[np.arange(3)] * 2, np.ones(3, np.int32)), {"mean": Column(at)})
        for at in (np.array([7.0, 8.0, 9.0]), np.array([4.0, 5.0, 6.0]))
    ]
    source = ColumnSource(tuple(Segment(1, {"baseline": "mean"}, 2, before) for before in (0, 3)))
    call = ModelCall("compute", None, "compute", CallKind.COMPUTE, ("baseline",), ("made",))
    request = CallRequest(
        call, 1, GraphName.STEP, "one", (InputBatch(BatchShape(6, 2), (source,)),)
    )
    inputs = CallInputs(request, scores, Coordinates(0, 1))
    assert inputs.load(inputs.rows())["baseline"].values.tolist() == [
        *(7, 7, 8, 8, 9, 9),
        *(4, 4, 5, 5, 6, 6),
    ]
    assert inputs.index.groups.tolist() == np.repeat(np.arange(6), 2).tolist()


def test_the_batches_of_auxiliary_losses_are_cut_into_as_many_mini_batches() -> None:
    names = {"tokens": "tokens"}
    main = InputBatch(EXTENT, (ColumnSource((Segment(2, names),)),))
    other = InputBatch(BatchShape(6), (ColumnSource((Segment(1, names),)),))
    call = ModelCall(
        "train", "actor", "train", CallKind.TRAIN, ("tokens",), (), auxiliary_reads=(("tokens",),)
    )
    request = CallRequest(call, 1, GraphName.STEP, "one", (main, other), 3)
    whole = shard_of(range(NUM_ROWS))
    alone = Shard(ShardIndex(np.arange(6), np.arange(6), LENGTHS), whole.columns)
    shards = [*(shard_of(rows) for rows in TWO), alone]
    found = [CallInputs(request, shards, Coordinates(rank, 2)) for rank in range(2)]
    own, others = (
        [sorted(np.concatenate(segments).tolist()) for segments in zip(*each, strict=True)]
        for each in (
            [inputs.mini_batches() for inputs in found],
            [inputs.auxiliary[0].mini_batches() for inputs in found],
        )
    )
    assert own == [[0, 1], [2, 3], [4, 5]] and others == [[0, 3], [1, 4], [2, 5]]
    check(found[0].auxiliary[0].load(np.array([4, 1])), np.array([4, 1]))


def test_a_call_that_reads_nothing_loads_nothing() -> None:
    cut = Cut()
    cut.add(Segment(1, {}), [shard_of(range(NUM_ROWS))])
    inputs = cut.inputs(kind=CallKind.TRAIN)
    assert inputs.rows().tolist() == list(range(NUM_ROWS))
    assert inputs.load(inputs.rows()) == {}
