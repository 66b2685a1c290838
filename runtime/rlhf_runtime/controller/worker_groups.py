"""Sends calls to groups of workers and turns their results into batches of references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

from rlhf_api.mesh import Mesh, union_ranks
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, ModelCall
from rlhf_runtime.calls.requests import CallRequest, ColumnSource, returned_columns
from rlhf_runtime.controller.batch import Batch, InputSources, ShardRef, as_batch
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.dataplane.call_protocols import protocol_of, row_bounds
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset, Slice
from rlhf_runtime.dataplane.protocol import Coordinates

# A Ray actor handle.
Handle = Any


# A worker's index in its group, its coordinates, and its request.
Assignment = tuple[int, Coordinates, CallRequest]


class SubmittedCall(NamedTuple):
    """A call that was sent."""

    reports: list[Any]
    """References to the reports of its workers."""
    result: Batch | None
    """Its result; None: it writes nothing."""
    unfinished: tuple[ShardRef, ...] = ()
    """Unfinished rows for another call, per engine."""

    @property
    def rows(self) -> Batch:
        """The result of a call that writes something."""
        assert self.result is not None, "the call writes nothing"
        return self.result


class WorkerGroup:
    """All ranks of a pool, in order."""

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        """nodes: of the workers, if known."""
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
        """Send a call to the workers that run it, with references to the shards they may need.

        Args:
            request: the call.
            batches: batches that it reads.
            mesh: its ranks; None for hosts.
            source: ranks that weights come from, which run the call, too; None: no transfer.
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
            # Ranks divide a partial subset by tokens: any row may be in any shard.
            if request.subset is not RowSubset.ALL:
                bounds = range(shape.num_rows)
            rows = range(bounds.start * samples, bounds.stop * samples)
            node = self.nodes[worker]
            shards.append(ShardRef(shard, rows, node, request.subset))
            unfinished += [
                ShardRef(reference, rows, node, RowSubset.UNFINISHED) for reference in rest
            ]

        # A user's protocol need not yield them in order.
        shards.sort(key=lambda shard: shard.rows.start)
        result = as_batch(names, shards, shape.repeated(samples)) if names else None
        return SubmittedCall(reports, result, tuple(unfinished))

    def _assignments(
        self, request: CallRequest, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Assignment]:
        """Yield every rank of the call's meshes."""
        assert mesh is not None
        for rank in mesh.ranks if source is None else union_ranks(mesh, source):
            yield rank, Coordinates.in_call(rank, mesh, source), request


class HostGroup(WorkerGroup):
    """Reward hosts. A call is sent in as many slices as its rows have shards: each begins as soon
    as its shard exists."""

    def submit(
        self,
        request: CallRequest,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> SubmittedCall:
        """Send a call; a partial subset of rows is sent shard by shard."""
        if request.subset is RowSubset.ALL:
            return super().submit(request, batches, mesh, source)
        (batch,) = batches
        sent = [
            super(HostGroup, self).submit(request, [batch.with_shard(shard)], mesh, source)
            for shard in self._main_shards(request, batch)
        ]
        results = [call.result for call in sent if call.result is not None]
        shards = [shard for result in results for shard in result.shards]
        reports = [report for call in sent for report in call.reports]
        return SubmittedCall(reports, as_batch(returned_columns(request.call), shards, batch.shape))

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        super().__init__(workers, nodes)
        self._turns = cycle(range(len(self.workers)))

    def _assignments(
        self, request: CallRequest, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Assignment]:
        """Yield a slice per shard of the column with the most shards."""
        nodes = [shard.node for shard in self._main_shards(request, batch)] or [None]
        for number, node in enumerate(nodes):
            # The slices equal those of a mesh with a data axis of as many ranks: generation cut
            # whole groups by the same rule. So each goes to the host on its node, without a
            # transfer; else hosts take turns.
            host = self._on_node(node)
            host = next(self._turns) if host is None else host
            batch_slice = Slice(number, len(nodes))
            yield (
                host,
                Coordinates(batch_slice.index, batch_slice.count),
                replace(request, batch_slice=batch_slice),
            )

    def host_for(self, node: Node) -> Handle | None:
        """Return the host that scores the shards of a node; None: several hosts take turns."""
        host = 0 if len(self.workers) == 1 else self._on_node(node)
        return None if host is None else self.workers[host]

    def _on_node(self, node: Node | None) -> int | None:
        return None if node is None or node not in self.nodes else self.nodes.index(node)

    @staticmethod
    def _main_shards(request: CallRequest, batch: Batch) -> list[ShardRef]:
        """Return the shards of the column with the most shards."""
        return max((batch.nonempty_shards(field) for field in request.call.reads), key=len)


def _inputs_for(
    request: CallRequest, read: Sequence[tuple[BatchShape, InputSources]], at: Coordinates
) -> tuple[list[Sequence[ColumnSource]], list[Any]]:
    """Return the sources of each batch for a rank, and references to its shards."""
    sources_by_batch: list[Sequence[ColumnSource]] = []
    references: list[Any] = []
    for shape, sources in read:
        needed, shard_references = sources.for_rows(_rows_needed(request, shape, at))
        sources_by_batch.append(needed)
        references += shard_references
    return sources_by_batch, references


def _rows_needed(request: CallRequest, shape: BatchShape, at: Coordinates) -> range:
    """Return bounds of a batch's rows that a rank works on."""
    call = request.call
    is_part = request.subset is not RowSubset.ALL and not request.leaves_rows
    if is_part or (isinstance(call.options, ComputeOptions) and call.options.sees_all):
        return range(shape.num_rows)
    batches = shape.mini_batches(request.mini_batches)
    bounds = [row_bounds(call, shape, at, groups) for groups in batches]
    bounds = [rows for rows in bounds if rows] or [range(0)]
    return range(min(rows.start for rows in bounds), max(rows.stop for rows in bounds))


def _rows_per_input_row(call: ModelCall) -> int:
    """Return the rows of a call's result per input row."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1
