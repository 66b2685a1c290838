"""Sends calls to groups of workers and turns what comes back into batches of references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

from rlhf_api.plan import Mesh, union_ranks
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, ModelCall
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, returned_columns
from rlhf_runtime.controller.batch import Batch, InputSources, ShardRef, as_batch
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.dataplane.call_protocols import protocol_of, row_bounds
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset, Slice
from rlhf_runtime.dataplane.protocol import Coordinates

Handle = Any
"""A Ray actor handle."""


Assignment = tuple[int, Coordinates, CallRequest]
"""A worker's number in its group, its place, and what it is to do."""


class SubmittedCall(NamedTuple):
    """A call that was sent."""

    reports: list[Any]
    """References to those of its workers."""
    result: Batch | None
    """What it writes. None: nothing."""
    unfinished: tuple[ShardRef, ...] = ()
    """What it leaves to another call to finish, of each engine."""

    @property
    def rows(self) -> Batch:
        """What it writes, where it writes something."""
        assert self.result is not None, "the call writes nothing"
        return self.result


class WorkerGroup:
    """All ranks of a pool, in order."""

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        """nodes: of the workers, where they are known."""
        self.workers = tuple(workers)
        self.nodes = tuple(nodes) or (None,) * len(self.workers)
        self._running = [worker.run for worker in workers]
        self._returning = [worker.run.options(num_returns=2) for worker in workers]

    def submit(
        self,
        request: CallRequest,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> SubmittedCall:
        """Send a call to the workers that run it.

        Each gets references to the shards that it can need.

        Args:
            order: the call.
            batches: those that it reads.
            mesh: its ranks; None for hosts.
            source: the ranks that it brings weights from, where it does; they run it, too.
        """
        call, shape = request.call, batches[0].shape
        names, samples = returned_columns(call), _rows_per_input_row(call)
        reads = zip(batches, (call.reads, *call.auxiliary_reads), strict=True)
        read = [(batch.shape, batch.sources(fields)) for batch, fields in reads]
        header = request.header()
        everything = range(shape.num_groups)
        returning = self._returning
        if request.leaves_rows:
            returning = [worker.run.options(num_returns=3) for worker in self.workers]
        reports: list[Any] = []
        shards: list[ShardRef] = []
        unfinished: list[ShardRef] = []
        for worker, at, own in self._assignments(request, batches[0], mesh, source):
            sources_by_batch, references = _inputs_for(request, read, at)
            message = own.to_message(references, header, sources_by_batch)
            if not names or not protocol_of(call).collect(at):
                reports.append(self._running[worker].remote(*message))
                continue
            report, shard, *rest = returning[worker].remote(*message)
            reports.append(report)
            bounds = row_bounds(call, shape, at, everything)
            if request.subset is not RowSubset.ALL:
                bounds = range(shape.num_rows)
            rows = range(bounds.start * samples, bounds.stop * samples)
            node = self.nodes[worker]
            shards.append(ShardRef(shard, rows, node, request.subset))
            unfinished += [ShardRef(each, rows, node, RowSubset.UNFINISHED) for each in rest]
        shards.sort(key=lambda shard: shard.rows.start)  # a protocol need not give them in order
        result = as_batch(names, shards, shape.repeated(samples)) if names else None
        return SubmittedCall(reports, result, tuple(unfinished))

    def _assignments(
        self, request: CallRequest, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Assignment]:
        """To every rank of the call's meshes."""
        assert mesh is not None
        for rank in mesh.ranks if source is None else union_ranks(mesh, source):
            yield rank, Coordinates.in_call(rank, mesh, source), request


class HostGroup(WorkerGroup):
    """Hosts beside the ranks, which are sent a call in as many parts as its rows come in: they
    begin with those that are there."""

    def submit(
        self,
        request: CallRequest,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> SubmittedCall:
        """Send a call; of a portion of its rows shard by shard, as these hold any of them."""
        if request.subset is RowSubset.ALL:
            return super().submit(request, batches, mesh, source)
        (batch,) = batches
        sent = [
            super(HostGroup, self).submit(request, [batch.with_shard(shard)], mesh, source)
            for shard in self._main_shards(request, batch)
        ]
        results = [each.result for each in sent if each.result is not None]
        shards = [shard for each in results for shard in each.shards]
        reports = [report for each in sent for report in each.reports]
        return SubmittedCall(reports, as_batch(returned_columns(request.call), shards, batch.shape))

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        super().__init__(workers, nodes)
        self._turns = cycle(range(len(self.workers)))

    def _assignments(
        self, request: CallRequest, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Assignment]:
        """Parts are those of the read column that comes in most, as by a mesh with a data axis of
        as many ranks: whoever generated cut whole groups by the same rule. Each goes to the host on
        the node where it was made; where none is, hosts take turns."""
        nodes = [shard.node for shard in self._main_shards(request, batch)] or [None]
        for number, node in enumerate(nodes):
            has_host = node is not None and node in self.nodes
            host = self.nodes.index(node) if has_host else next(self._turns)
            batch_slice = Slice(number, len(nodes))
            yield (
                host,
                Coordinates(batch_slice.index, batch_slice.count),
                replace(request, batch_slice=batch_slice),
            )

    @staticmethod
    def _main_shards(request: CallRequest, batch: Batch) -> list[ShardRef]:
        """The shards of the column that comes in most."""
        return max((batch.nonempty_shards(field) for field in request.call.reads), key=len)


def _inputs_for(
    request: CallRequest, read: Sequence[tuple[BatchShape, InputSources]], at: Coordinates
) -> tuple[list[Sequence[ColumnSource]], list[Any]]:
    """What a rank is told of each batch that the call reads, and references to its shards."""
    sources_by_batch: list[Sequence[ColumnSource]] = []
    references: list[Any] = []
    for shape, sources in read:
        needed, shard_references = sources.for_rows(_rows_needed(request, shape, at))
        sources_by_batch.append(needed)
        references += shard_references
    return sources_by_batch, references


def _rows_needed(request: CallRequest, shape: BatchShape, at: Coordinates) -> range:
    """Among which rows of a batch those are that a rank works on."""
    call = request.call
    is_part = request.subset is not RowSubset.ALL and not request.leaves_rows
    if is_part or (isinstance(call.options, ComputeOptions) and call.options.sees_all):
        return range(shape.num_rows)
    batches = shape.mini_batches(request.mini_batches)
    bounds = [row_bounds(call, shape, at, groups) for groups in batches]
    bounds = [each for each in bounds if each] or [range(0)]
    return range(min(each.start for each in bounds), max(each.stop for each in bounds))


def _rows_per_input_row(call: ModelCall) -> int:
    """Rows of a call's result for each row that it reads."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1
