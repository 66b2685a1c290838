"""Every protocol from the driver to the ranks: what each rank of each grid is given of rows that
ranks of another grid have made, against HybridFlow's table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, InputBatch, returned_columns
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.worker_groups import WorkerGroup
from rlhf_runtime.dataplane.call_protocols import protocol_of
from rlhf_runtime.dataplane.columns import Column, pack
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex

from ..dataplane import pairs
from ..dataplane.table_3 import GRIDS, NUM_GROUPS, chunks, collected, given, megatron_ranks

pytestmark = pytest.mark.slow

SAMPLES = 3
"""Rows of each prompt, where a batch has several."""


@dataclass(frozen=True)
class Calling:
    """Calls that use a protocol of the table: of a kind, or by a pair of the user's own."""

    protocol: str
    """The table's name."""
    kind: CallKind = CallKind.COMPUTE
    pair: str | None = None

    def call(self, reads: tuple[str, ...], writes: tuple[str, ...]) -> ModelCall:
        options = None
        if self.pair is not None:
            operation = Custom("mine:f", reads, writes, protocol=f"{pairs.MODULE}:{self.pair}")
            options = ComputeOptions((operation,))
        return ModelCall("call", "actor", "call", self.kind, reads, writes, options=options)


MAKERS = (
    Calling("3d_all_micro_dp", CallKind.GENERATE),
    Calling("3d", CallKind.INFER),
    Calling("3d", CallKind.COMPUTE),
    Calling("all_to_all", pair="ALL_TO_ALL"),
    Calling("backwards", pair="BACKWARDS"),
    Calling("on_first", pair="ON_FIRST"),
)
"""Their collected ranks have every row once."""

READERS = (
    Calling("3d_all_micro_dp", CallKind.GENERATE),
    Calling("3d", CallKind.INFER),
    Calling("3d", CallKind.TRAIN),
    Calling("3d", CallKind.COMPUTE),
    Calling("one_to_all", CallKind.COPY),
    Calling("one_to_all", pair="ONE_TO_ALL"),
    Calling("3d", pair="BY_DATA"),
    Calling("3d_all_micro_dp", pair="MICRO"),
    Calling("3d_pp_only", pair="STAGES"),
    Calling("dp", pair="ALL_RANKS"),
    Calling("all_to_all", pair="ALL_TO_ALL"),
    Calling("backwards", pair="BACKWARDS"),
    Calling("on_first", pair="ON_FIRST"),
)


def tokens(row: int) -> list[int]:
    """What the packed column has for a row."""
    return [100 * row + place for place in range(length(row))]


def length(row: int) -> int:
    return row * 7 % 5


def made(row: int) -> float:
    """What a maker writes for a row."""
    return row / 2 + 1


@dataclass(eq=False)
class Reference:
    """Stands for Ray's."""

    shard: Shard


class FakeRank:
    """A rank in this process: it finds its rows as a rank does, checks what it reads, and returns
    as many things as it is asked for."""

    def __init__(self, rank: int, mesh: Mesh, period: int) -> None:
        self._at = Coordinates.in_mesh(rank, mesh)
        self._period = period
        """Rows after which values are the same again."""
        self.rows: list[int] = []
        self.is_collected = False

    @property
    def run(self) -> FakeRank:
        return self

    def options(self, num_returns: int) -> Returning:
        assert num_returns == 2
        return Returning(self)

    def remote(self, *message: Any) -> str:
        report, shard = self.work(*message)
        assert shard is None, "nobody would take it"
        return report

    def work(self, header: bytes, own: bytes, *held: Reference) -> tuple[str, Reference | None]:
        request = CallRequest.from_message(header, own)
        inputs = CallInputs(request, [each.shard for each in held], self._at)
        (rows,) = inputs.mini_batches()
        self.rows, columns = rows.tolist(), inputs.load(rows)
        written = [row % self._period for row in self.rows]
        assert [run.tolist() for run in columns["tokens"].runs()] == [tokens(r) for r in written]
        if "made" in columns:
            assert columns["made"].values.tolist() == [made(row) for row in written]
        self.is_collected = protocol_of(request.call).collect(self._at)
        if not returned_columns(request.call) or not self.is_collected:
            return "report", None
        values = Column(np.array([made(row) for row in self.rows]))
        return "report", Reference(Shard(inputs.index.find(rows), {"made": values}))


@dataclass
class Returning:
    """A rank that was told to return its report and a shard."""

    rank: FakeRank

    def remote(self, *message: Any) -> tuple[str, Reference]:
        report, shard = self.rank.work(*message)
        assert shard is not None, "the driver would wait for it"
        return report, shard


def prompts(shape: BatchShape) -> Batch:
    """Rows of a host, in one shard."""
    rows = np.arange(shape.num_rows)
    lengths = np.array([length(row) for row in range(len(rows))], dtype=np.int32)
    index = ShardIndex(rows, rows // shape.rows_per_group, lengths)
    packed = pack([tokens(row) for row in range(len(rows))], np.int32)
    held = [ShardRef(Reference(Shard(index, {"tokens": packed})), range(len(rows)))]
    return as_batch(("tokens",), held, shape)


def send(
    calling: Calling,
    mesh: Mesh,
    batch: Batch,
    writes: tuple[str, ...] = (),
    period: int | None = None,
) -> tuple[Batch | None, list[FakeRank]]:
    ranks = [FakeRank(rank, mesh, period or batch.shape.num_rows) for rank in mesh.ranks]
    call = calling.call(tuple(sorted(batch.column_names)), writes)
    request = CallRequest(call, 1, GraphName.STEP, "one", (InputBatch(batch.shape),))
    reports, result, _ = WorkerGroup(ranks).submit(request, [batch], mesh)
    assert reports == ["report"] * len(ranks)
    return result, ranks


def rows_of(calling: Calling, mesh: Mesh, shape: BatchShape) -> list[list[int]]:
    """The rows that every rank should have, naively."""
    if calling.kind in (CallKind.INFER, CallKind.TRAIN):
        parts = balance_tokens(mesh.data, shape.num_rows)
        return [parts[rank.dp] for rank in megatron_ranks(mesh)]
    if calling.protocol == "backwards":
        own = chunks(shape.num_groups, mesh.data)[::-1]
        groups = [own[rank.dp] for rank in megatron_ranks(mesh)]
    else:
        name = "one_to_all" if calling.protocol == "on_first" else calling.protocol
        groups = given(name, mesh, shape.num_groups)
    samples = range(shape.rows_per_group)
    return [
        [group * len(samples) + sample for group in part for sample in samples] for part in groups
    ]


def balance_tokens(parts: int, num_rows: int) -> list[list[int]]:
    """Row by row, the longest first, to whoever has the fewest tokens, then rows, then number."""
    owned: list[list[int]] = [[] for _ in range(parts)]
    for row in sorted(range(num_rows), key=lambda row: (-length(row), row)):
        min(owned, key=lambda rows: (sum(map(length, rows)), len(rows))).append(row)
    return [sorted(rows) for rows in owned]


def collected_of(calling: Calling, mesh: Mesh) -> list[int]:
    if calling.protocol == "on_first":
        return [0]
    return collected({"backwards": "3d_all_micro_dp"}.get(calling.protocol, calling.protocol), mesh)


def check(ranks: Sequence[FakeRank], calling: Calling, mesh: Mesh, shape: BatchShape) -> None:
    assert [rank.rows for rank in ranks] == rows_of(calling, mesh, shape)
    assert [n for n, rank in enumerate(ranks) if rank.is_collected] == collected_of(calling, mesh)


Made = list[tuple[Calling, Mesh, Batch]]


@pytest.fixture(scope="module")
def batches() -> Made:
    """Rows that ranks of every grid have made by every protocol, beside those that they read."""
    done = []
    for calling in MAKERS:
        for mesh in GRIDS:
            for number in NUM_GROUPS:
                shape = BatchShape(number, SAMPLES if number % 2 else 1)
                read = prompts(shape)
                result, ranks = send(calling, mesh, read, ("made",))
                check(ranks, calling, mesh, shape)
                assert result is not None and result.shape == shape
                done.append((calling, mesh, read | result))
    return done


def test_shards_are_in_the_order_of_their_rows(batches: Made) -> None:
    for calling, _, batch in batches:
        (held,) = batch.columns["made"].segments
        if calling.kind is not CallKind.INFER:  # whose ranks balance tokens
            rows = [row for shard in held.shards for row in shard.reference.shard.index.rows]
            assert rows == list(range(batch.shape.num_rows)), calling


@pytest.mark.parametrize("mesh", GRIDS, ids=str)
@pytest.mark.parametrize("reader", READERS, ids=str)
def test_every_rank_is_given_what_the_table_says(
    reader: Calling, mesh: Mesh, batches: Made
) -> None:
    # Of every maker and grid one or two numbers of prompts.
    first = (READERS.index(reader) + GRIDS.index(mesh)) % 3
    for _, _, batch in batches[first::3]:
        _, ranks = send(reader, mesh, batch)
        check(ranks, reader, mesh, batch.shape)


@pytest.mark.parametrize("num_groups", [3, 11])
def test_shards_are_found_however_a_pair_orders_its_ranks(num_groups: int) -> None:
    """Also where ranks have no rows, and where two rounds' rows are put one after the other."""
    shape, reader = BatchShape(num_groups, SAMPLES), Calling("all_to_all", pair="ALL_TO_ALL")
    for maker in (Calling("backwards", pair="BACKWARDS"), Calling("halving", pair="HALVING")):
        read = prompts(shape)
        result, _ = send(maker, Mesh(pool="a", data=5), read, ("made",))
        assert result is not None
        once = read | result
        for size in range(1, 7):
            mesh = Mesh(pool="a", data=size)
            for batch in (once, once.concat(once)):
                _, ranks = send(reader, mesh, batch, period=shape.num_rows)
                check(ranks, reader, mesh, batch.shape)
