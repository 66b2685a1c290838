"""Sends calls to groups of workers and turns what comes back into batches of references."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any, NamedTuple

from rlhf_api.plan import Mesh, union_ranks
from rlhf_flow.step.calls import ComputeOptions, GenerateOptions, ModelCall
from rlhf_runtime.controller.batch import Batch, ShardRef, Sources, as_batch
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.dataplane.calls import bounds_of_part, protocol_of
from rlhf_runtime.dataplane.partition import Extent, Portion, Share
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.workers.orders import Order, Source, returned_columns

Handle = Any
"""A Ray actor handle."""


Sending = tuple[int, Coordinates, Order]
"""A worker's number in its group, its place, and what it is to do."""


class Sent(NamedTuple):
    """A call that was sent."""

    reports: list[Any]
    """References to those of its workers."""
    result: Batch | None
    """What it writes. None: nothing."""
    left: tuple[ShardRef, ...] = ()
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
        order: Order,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> Sent:
        """Send a call to the workers that run it.

        Each gets references to the shards that it can need.

        Args:
            order: the call.
            batches: those that it reads.
            mesh: its ranks; None for hosts.
            source: the ranks that it brings weights from, where it does; they run it, too.
        """
        call, extent = order.call, batches[0].extent
        names, samples = returned_columns(call), _samples(call)
        reads = zip(batches, (call.reads, *call.auxiliary_reads), strict=True)
        read = [(batch.extent, batch.sources(fields)) for batch, fields in reads]
        header = order.header()
        everything = range(extent.num_groups)
        returning = self._returning
        if order.leaves_rows:
            returning = [worker.run.options(num_returns=3) for worker in self.workers]
        reports: list[Any] = []
        shards: list[ShardRef] = []
        left: list[ShardRef] = []
        for worker, at, own in self._sendings(order, batches[0], mesh, source):
            picked, references = _pick(order, read, at)
            message = own.message(references, header, picked)
            if not names or not protocol_of(call).collect(at):
                reports.append(self._running[worker].remote(*message))
                continue
            report, shard, *rest = returning[worker].remote(*message)
            reports.append(report)
            held = bounds_of_part(call, extent, at, everything)
            if order.portion is not Portion.ALL:
                held = range(extent.num_rows)
            rows = range(held.start * samples, held.stop * samples)
            node = self.nodes[worker]
            shards.append(ShardRef(shard, rows, node, order.portion))
            left += [ShardRef(each, rows, node, Portion.LEFT) for each in rest]
        shards.sort(key=lambda shard: shard.rows.start)  # a protocol need not give them in order
        result = as_batch(names, shards, extent.times(samples)) if names else None
        return Sent(reports, result, tuple(left))

    def _sendings(
        self, order: Order, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Sending]:
        """To every rank of the call's meshes."""
        assert mesh is not None
        for rank in mesh.ranks if source is None else union_ranks(mesh, source):
            yield rank, Coordinates.in_call(rank, mesh, source), order


class HostGroup(WorkerGroup):
    """Hosts beside the ranks, which are sent a call in as many parts as its rows come in: they
    begin with those that are there."""

    def submit(
        self,
        order: Order,
        batches: Sequence[Batch],
        mesh: Mesh | None,
        source: Mesh | None = None,
    ) -> Sent:
        """Send a call; of a portion of its rows shard by shard, as these hold any of them."""
        if order.portion is Portion.ALL:
            return super().submit(order, batches, mesh, source)
        (batch,) = batches
        sent = [
            super(HostGroup, self).submit(order, [batch.only(piece)], mesh, source)
            for piece in self._pieces(order, batch)
        ]
        results = [each.result for each in sent if each.result is not None]
        shards = [shard for each in results for shard in each.shards]
        reports = [report for each in sent for report in each.reports]
        return Sent(reports, as_batch(returned_columns(order.call), shards, batch.extent))

    def __init__(self, workers: Sequence[Handle], nodes: Sequence[Node] = ()) -> None:
        super().__init__(workers, nodes)
        self._turns = cycle(range(len(self.workers)))

    def _sendings(
        self, order: Order, batch: Batch, mesh: Mesh | None, source: Mesh | None
    ) -> Iterator[Sending]:
        """Parts are those of the read column that comes in most, as by a mesh with a data axis of
        as many ranks: whoever generated cut whole groups by the same rule. Each goes to the host on
        the node where it was made; where none is, hosts take turns."""
        nodes = [piece.node for piece in self._pieces(order, batch)] or [None]
        for number, node in enumerate(nodes):
            known = node is not None and node in self.nodes
            host = self.nodes.index(node) if known else next(self._turns)
            share = Share(number, len(nodes))
            yield host, Coordinates(share.number, share.count), replace(order, share=share)

    @staticmethod
    def _pieces(order: Order, batch: Batch) -> list[ShardRef]:
        """The shards of the column that comes in most."""
        return max((batch.pieces(field) for field in order.call.reads), key=len)


def _pick(
    order: Order, read: Sequence[tuple[Extent, Sources]], at: Coordinates
) -> tuple[list[Sequence[Source]], list[Any]]:
    """What a rank is told of each batch that the call reads, and references to its shards."""
    told: list[Sequence[Source]] = []
    references: list[Any] = []
    for extent, sources in read:
        picked, found = sources.within(_rows_needed(order, extent, at))
        told.append(picked)
        references += found
    return told, references


def _rows_needed(order: Order, extent: Extent, at: Coordinates) -> range:
    """Among which rows of a batch those are that a rank works on."""
    call = order.call
    is_part = order.portion is not Portion.ALL and not order.leaves_rows
    if is_part or (isinstance(call.options, ComputeOptions) and call.options.sees_all):
        return range(extent.num_rows)
    batches = extent.mini_batches(order.mini_batches)
    bounds = [bounds_of_part(call, extent, at, groups) for groups in batches]
    bounds = [each for each in bounds if each] or [range(0)]
    return range(min(each.start for each in bounds), max(each.stop for each in bounds))


def _samples(call: ModelCall) -> int:
    """Rows of a call's result for each row that it reads."""
    return call.options.samples if isinstance(call.options, GenerateOptions) else 1
