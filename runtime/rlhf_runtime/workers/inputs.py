"""A call's inputs on one rank: which rows are its own, and their columns."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import balanced, contiguous, window
from rlhf_runtime.dataplane.protocol import BALANCED, Coordinates, protocol_of
from rlhf_runtime.dataplane.shards import Shard, ShardIndex, locate, merge
from rlhf_runtime.workers.orders import Order, Source


class Inputs:
    """What a call may read.

    Args:
        order: the call.
        shards: of the order's sources, one source after the other.
        at: the rank's place in the call's mesh.
    """

    def __init__(self, order: Order, shards: Sequence[Shard], at: Coordinates) -> None:
        self.call = order.call
        self.step = order.step
        self.graph = order.graph
        self.extent = order.extent
        self.at = at
        self._groups_per_batch = order.groups_per_batch
        self._share = protocol_of(order.call.kind).distribute(at)
        remaining = iter(shards)
        self._sources = [
            (source, [next(remaining) for _ in range(source.num_shards)])
            for source in order.sources
        ]

    @cached_property
    def index(self) -> ShardIndex:
        """The rows that were sent, in order: this rank's, and others of the same shards."""
        source, shards = self._sources[0]
        return merge([shard.index for shard in shards]).repeat(source.repeat)

    def rows(self) -> Rows:
        """This rank's rows by the call's protocol, in ascending order."""
        return self._part_of(range(self.extent.num_groups))

    def mini_batches(self) -> list[Rows]:
        """This rank's rows of every mini-batch, in ascending order."""
        return [self._part_of(g) for g in self.extent.mini_batches(self._groups_per_batch)]

    def load(self, rows: Rows) -> dict[str, Column]:
        """Every column that the call reads, at the given rows.

        Raises:
            ValueError: a row that was not sent.
        """
        return {
            name: column
            for source, shards in self._sources
            if source.names
            for name, column in _load(source, shards, rows).items()
        }

    def _part_of(self, groups: range) -> Rows:
        samples = self.extent.rows_per_group
        if self.call.kind not in BALANCED:
            return contiguous(groups, samples, self._share).rows()
        whole = self.call.compares_responses
        found = window(groups, samples, self._share, whole)
        entries = self.index.find(found.span.rows())
        return balanced(entries, found.share.count, whole)[found.share.number]


def _load(source: Source, shards: Sequence[Shard], rows: Rows) -> dict[str, Column]:
    location = locate(rows // source.repeat, [shard.index.rows for shard in shards])
    held = [shards[number].columns for number in location.shards]
    return {
        name: location.pick([columns[stored] for columns in held])
        for name, stored in source.names.items()
    }
