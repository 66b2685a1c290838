"""A call's inputs on one rank: which rows are its own, and their columns, fetched when asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import contiguous
from rlhf_runtime.dataplane.protocol import Coordinates, protocol_of
from rlhf_runtime.dataplane.shards import ShardIndex, locate, merge
from rlhf_runtime.workers.orders import ColumnRef, Order, Source

Fetch = Callable[[Sequence[ColumnRef]], Sequence[Column]]
"""Resolves references: `ray.get` in a worker, a list in a test."""


class Inputs:
    """What a call may read.

    `at` is the rank's place in the call's mesh.
    """

    def __init__(
        self, order: Order, indexes: Sequence[ShardIndex], at: Coordinates, fetch: Fetch
    ) -> None:
        self.call = order.call
        self.step = order.step
        self.graph = order.graph
        self.at = at
        self._indexes = indexes
        self._sources = order.sources
        self._fetch = fetch

    @cached_property
    def index(self) -> ShardIndex:
        """All rows of the batch in order."""
        if not self._sources:
            return merge(self._indexes)
        first = self._sources[0]
        return merge(self._indexes[: first.num_shards]).repeat(first.repeat)

    def rows(self) -> Rows:
        """This rank's rows by the call's protocol: consecutive, groups whole, tokens balanced."""
        return protocol_of(self.call.kind).distribute(self.index, self.at, contiguous)

    def load(self, rows: Rows) -> dict[str, Column]:
        """Every column that the call reads, at the given rows. One round trip for all of them.

        Raises:
            ValueError: a row that a column does not have.
        """
        found = [
            (source, locate(rows // source.repeat, self._rows_of(source)))
            for source in self._sources
        ]
        refs = [
            column[shard]
            for source, location in found
            for column in source.columns.values()
            for shard in location.shards
        ]
        parts = iter(self._fetch(refs))
        return {
            name: location.pick([next(parts) for _ in location.shards])
            for source, location in found
            for name in source.columns
        }

    def _rows_of(self, source: Source) -> list[Rows]:
        shards = self._indexes[source.first_index :][: source.num_shards]
        return [index.rows for index in shards]
