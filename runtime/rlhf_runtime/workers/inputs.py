"""A call's inputs on one rank: which rows are its own, and their columns, fetched when asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import contiguous
from rlhf_runtime.dataplane.protocol import Coordinates, protocol_of
from rlhf_runtime.dataplane.shards import ShardIndex, gather, merge
from rlhf_runtime.workers.orders import ColumnRef, Order, Source

Fetch = Callable[[Sequence[ColumnRef]], Sequence[Column]]
"""Resolves references: `ray.get` in a worker, a list in a test."""


class Inputs:
    """What a call may read.

    `index` lists all rows of the batch in order; `at` is the rank's place in the call's mesh.
    """

    def __init__(
        self, order: Order, indexes: Sequence[ShardIndex], at: Coordinates, fetch: Fetch
    ) -> None:
        self.call = order.call
        self.step = order.step
        self.graph = order.graph
        self.at = at
        self.index = merge(indexes[: order.num_base_shards])
        self._indexes = indexes
        self._sources = order.sources
        self._fetch = fetch

    def rows(self) -> Rows:
        """This rank's rows by the call's protocol: consecutive, groups whole, tokens balanced."""
        return protocol_of(self.call.kind).distribute(self.index, self.at, contiguous)

    def load(self, rows: Rows) -> dict[str, Column]:
        """Every column that the call reads, at the given rows. One round trip for all of them."""
        wanted: dict[tuple[str, int], ColumnRef] = {}
        held: dict[str, list[Rows]] = {}
        for source in self._sources:
            shards = self._rows_of(source)
            needed = shards_holding(rows, shards)
            for name, refs in source.columns.items():
                held[name] = shards
                wanted.update({(name, shard): refs[shard] for shard in needed})
        got = dict(zip(wanted, self._fetch(list(wanted.values())), strict=True))

        def fetched(name: str) -> Callable[[Sequence[int]], Sequence[Column]]:
            return lambda numbers: [got[name, number] for number in numbers]

        return {name: gather(rows, shards, fetched(name)) for name, shards in held.items()}

    def _rows_of(self, source: Source) -> list[Rows]:
        count = len(next(iter(source.columns.values())))
        first = source.first_index
        return [index.rows for index in self._indexes[first : first + count]]


def shards_holding(rows: Rows, held: Sequence[Rows]) -> list[int]:
    """Shards with at least one of the rows; the first shard if no row is wanted."""
    holding = [number for number, shard in enumerate(held) if np.isin(shard, rows).any()]
    return holding or [0]
