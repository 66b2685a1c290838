"""From the driver's choice of shards to the rows that ranks find in them, on meshes of any size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.calls import CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, ModelCall, Options, TrainOptions
from rlhf_flow.step.losses import BradleyTerry, CrossEntropy, Dpo
from rlhf_flow.step.operations import Custom, Scope
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.requests import CallRequest, InputBatch, returned_columns
from rlhf_runtime.controller.batch import Batch, ShardRef, as_batch
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex

from ...depth import examples

Expected = dict[str, Callable[[Rows], Rows]]
"""The value of every column in some rows of the batch."""


@dataclass(eq=False)
class Reference:
    """Stands for Ray's."""

    shard: Shard


class FakeRank:
    """Finds its rows as a rank does, or a host, and compares what it reads with what it should."""

    def __init__(self, at: Coordinates | None, expected: Expected) -> None:
        """at: its place; None: a host, which is told its part."""
        self._at = at
        self._expected = expected
        self.parts: list[list[int]] = []
        self.sent: list[tuple[list[int], int]] = []

    @property
    def run(self) -> FakeRank:
        return self

    def options(self, num_returns: int) -> FakeRank:
        return self

    def remote(self, header: bytes, own: bytes, *shards: Reference) -> Any:
        request = CallRequest.from_message(header, own)
        at = self._at or Coordinates(
            data=request.batch_slice.index, data_size=request.batch_slice.count
        )
        inputs = CallInputs(request, [each.shard for each in shards], at)
        options = request.call.options
        if request.call.kind is CallKind.TRAIN:
            found = inputs.mini_batches()
        elif isinstance(options, ComputeOptions) and options.sees_all:
            self._check(inputs, inputs.index.rows)
            assert len(inputs.index.rows) == inputs.shape.num_rows
            found = [inputs.rows()]
        else:
            found = [inputs.rows()]
        for rows in found:
            self._check(inputs, rows)
        self.parts = [rows.tolist() for rows in found]
        self.sent.append((self.parts[0], len(shards)))
        samples = options.samples if isinstance(options, GenerateOptions) else 1
        made = inputs.index.find(found[0]).repeat(samples)
        lengths = (1 + made.rows * 7919 % 37).astype(np.int32)
        index = ShardIndex(made.rows, made.groups, lengths)
        columns = {name: Column(index.rows) for name in returned_columns(request.call)}
        return "report", Reference(Shard(index, columns))

    def _check(self, inputs: CallInputs, rows: Rows) -> None:
        groups = inputs.index.find(rows).groups
        assert groups.tolist() == (rows // inputs.shape.rows_per_group).tolist()
        for name, column in inputs.load(rows).items():
            assert column.values.tolist() == self._expected[name](rows).tolist(), name


MESHES = st.builds(
    lambda first, data, tensor: Mesh(pool="a", first_rank=first, data=data, tensor=tensor),
    st.integers(0, 2),
    st.integers(1, 20),
    st.sampled_from([1, 1, 2]),
)


def send(
    kind: CallKind,
    batch: Batch,
    mesh: Mesh,
    expected: Expected,
    reads: tuple[str, ...],
    writes: tuple[str, ...] = (),
    options: Options = None,
    mini_batches: int = 1,
) -> tuple[Batch | None, list[list[list[int]]]]:
    """A call's result, and the rows of every part on each replica."""
    call = ModelCall("call", "actor", "call", kind, reads, writes, options=options)
    places = {rank: Coordinates.in_mesh(rank, mesh) for rank in mesh.ranks}
    ranks = [FakeRank(places.get(rank), expected) for rank in range(mesh.ranks.stop)]
    given = (InputBatch(batch.shape),)
    request = CallRequest(call, 1, GraphName.STEP, "one", given, mini_batches)
    _, made, _ = WorkerGroup(ranks).submit(request, [batch], mesh)
    replicas = {at.data: ranks[rank].parts for rank, at in places.items()}
    return made, list(replicas.values())


def send_to_host(batch: Batch, expected: Expected) -> tuple[Batch, list[tuple[list[int], int]]]:
    """Its scores, and the rows of every part with the number of shards that it was sent."""
    call = ModelCall("score", "reward", "score", CallKind.SCORE, tuple(expected), ("scores",))
    host = FakeRank(None, expected)
    request = CallRequest(call, 1, GraphName.STEP, "one", (InputBatch(batch.shape),))
    reports, made, _ = HostGroup([host]).submit(request, [batch], None)
    assert made is not None and len(reports) == len(host.sent)
    return made, host.sent


def same(rows: Rows) -> Rows:
    return rows


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 3), MESHES)
def test_a_part_of_what_is_scored_is_what_one_replica_generated(
    prompts: int, samples: int, rounds: int, mesh: Mesh
) -> None:
    """Of one round or of several: none waits for another replica's responses."""
    collected: Batch | None = None
    for _ in range(rounds):
        numbers = np.arange(prompts, dtype=np.int64)
        index = ShardIndex(numbers, numbers, np.ones(prompts, dtype=np.int32))
        held = [ShardRef(Reference(Shard(index, {"prompt": Column(numbers)})), range(prompts))]
        given_prompts = as_batch(("prompt",), held, BatchShape(prompts))
        of = (CallKind.GENERATE, given_prompts, mesh, {"prompt": same}, ("prompt",), ("tokens",))
        batch, generated = send(*of, GenerateOptions(samples))
        assert batch is not None
        collected = batch if collected is None else collected.concat(batch)
    assert collected is not None

    def of_round(rows: Rows) -> Rows:
        return rows % (prompts * samples)

    scoring, parts = send_to_host(collected, {"tokens": of_round})
    answered = [rows for ((*rows,),) in generated if rows]
    expected = [
        [samples * (prompts * number + row) + sample for row in rows for sample in range(samples)]
        for number in range(rounds)
        for rows in answered
    ]
    assert parts == [(rows, 1) for rows in expected]
    assert [shard.rows for shard in scoring.nonempty_shards("scores")] == [
        range(rows[0], rows[-1] + 1) for rows in expected
    ]


@settings(deadline=None, max_examples=examples(60))
@given(st.integers(1, 50), st.integers(1, 4), st.integers(1, 3), st.integers(1, 5), st.data())
def test_every_rank_finds_its_rows_in_what_it_is_sent(
    prompts: int, samples: int, rounds: int, mini_batches: int, data: st.DataObject
) -> None:
    """Rounds of prompts are answered, scored, read again, put one after the other, and trained on;
    a baseline of one row for each prompt is laid beside its samples."""

    def mesh() -> Mesh:
        return data.draw(MESHES)

    collected: Batch | None = None
    for _ in range(rounds):
        numbers = np.arange(prompts, dtype=np.int64)
        shard = Shard(
            ShardIndex(numbers, numbers, np.ones(prompts, dtype=np.int32)),
            {"prompt": Column(numbers)},
        )
        held = [ShardRef(Reference(shard), range(prompts))]
        given_prompts = as_batch(("prompt",), held, BatchShape(prompts))
        told: Expected = {"prompt": same}
        of = (CallKind.GENERATE, given_prompts)
        batch, _ = send(*of, mesh(), told, ("prompt",), ("tokens",), GenerateOptions(samples))
        greedy, _ = send(*of, mesh(), told, ("prompt",), ("scores",), GenerateOptions(1))
        assert batch is not None and greedy is not None
        batch |= greedy.rename(scores="baseline").broadcast(batch)
        told = {"tokens": same, "baseline": lambda rows: rows // samples}
        read, _ = send(CallKind.INFER, batch, mesh(), told, ("baseline", "tokens"), ("log_probs",))
        assert read is not None
        batch |= read
        scoring, _ = send_to_host(batch, {"tokens": same})
        batch |= scoring
        collected = batch if collected is None else collected.concat(batch)
    assert collected is not None and collected.shape == BatchShape(prompts * rounds, samples)

    def of_round(rows: Rows) -> Rows:
        return rows % (prompts * samples)

    told = {"tokens": of_round, "log_probs": of_round, "scores": of_round}
    told["baseline"] = lambda rows: of_round(rows) // samples
    scope = data.draw(st.sampled_from([Scope.GROUP, Scope.BATCH]))
    operation = ComputeOptions((Custom("mine:f", ["log_probs"], ["made"], scope=scope),))
    reads = ("baseline", "log_probs")
    made, _ = send(CallKind.COMPUTE, collected, mesh(), told, reads, ("made",), operation)
    assert made is not None
    collected |= made
    told["made"] = same
    reads = tuple(data.draw(st.permutations(sorted(told))))[: data.draw(st.integers(1, 4))]
    for loss in (CrossEntropy(), BradleyTerry(), Dpo("log_probs")):
        options = TrainOptions(loss)
        train = (CallKind.TRAIN, collected, mesh(), told, reads, (), options, mini_batches)
        _, replicas = send(*train)
        for number, groups in enumerate(collected.shape.mini_batches(mini_batches)):
            parts = [parts[number] for parts in replicas]
            wanted = [group * samples + sample for group in groups for sample in range(samples)]
            assert sorted(sum(parts, [])) == wanted
            if not isinstance(loss, CrossEntropy):
                owners = [{row // samples for row in rows} for rows in parts]
                assert sum(map(len, owners)) == len(groups), "no prompt's rows are torn apart"
