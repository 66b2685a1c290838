"""A batch as the driver sees it: references to column shards, nothing else."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_flow.batches import BatchValue
from rlhf_runtime.dataplane.partition import Extent
from rlhf_runtime.workers.orders import Source


@dataclass(frozen=True)
class ShardRef:
    """A shard by reference."""

    reference: Any
    """Ray's, to a `Shard`."""
    rows: range
    """Among which its rows are; other shards may have some of these."""


Shards = tuple[ShardRef, ...]
"""Those of one call, in the order of their rows."""


@dataclass(frozen=True)
class ColumnAt:
    """Where a column is."""

    shards: Shards
    name: str
    """What its call named it."""
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""


@dataclass(frozen=True)
class Batch:
    """Columns over the same rows, all by reference; `base` lists them, and so does every column."""

    base: Shards
    columns: Mapping[str, ColumnAt]
    extent: Extent

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.columns)

    def __or__(self, other: BatchValue, /) -> Batch:
        """Both's columns; where both have one, the other's. The rows must be the same."""
        assert isinstance(other, Batch)
        return replace(self, columns={**self.columns, **other.columns})

    def select(self, *names: str) -> Batch:
        """These columns only. Those of the data that no call reads were never sent."""
        kept = {name: self.columns[name] for name in names if name in self.columns}
        return replace(self, columns=kept)

    def rename(self, **names: str) -> Batch:
        """The same columns, some under other names."""
        columns = {names.get(name, name): column for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def broadcast(self, like: BatchValue, /) -> Batch:
        """The columns with the rows of another batch that was generated from the same ones."""
        assert isinstance(like, Batch)
        times = like.extent.rows_per_group // self.extent.rows_per_group
        columns = {
            name: replace(column, repeat=column.repeat * times)
            for name, column in self.columns.items()
        }
        return replace(like, columns=columns)

    def sources(self, fields: Sequence[str]) -> Sources:
        """Where the given fields are; without fields, the rows."""
        grouped: dict[tuple[Shards, int], dict[str, str]] = {}
        for field in sorted(fields, key=lambda name: self.columns[name].repeat > 1):
            column = self.columns[field]
            grouped.setdefault((column.shards, column.repeat), {})[field] = column.name
        if not grouped:
            grouped[self.base, 1] = {}
        return Sources(tuple(_CallShards(*held, names) for held, names in grouped.items()))


def as_batch(names: Sequence[str], shards: Sequence[ShardRef], extent: Extent) -> Batch:
    """A batch of what one call wrote.

    Args:
        names: of the columns.
        shards: in the order of their rows.
        extent: of the rows.
    """
    held = tuple(shards)
    return Batch(held, {name: ColumnAt(held, name) for name in names}, extent)


class _CallShards:
    """The shards of one call, to be asked for those with some rows."""

    def __init__(self, shards: Shards, repeat: int, names: Mapping[str, str]) -> None:
        self.repeat = repeat
        self.names = names
        self._shards = tuple(shard for shard in shards if shard.rows) or shards[:1]
        self._starts = [shard.rows.start for shard in self._shards]
        self._stops = [shard.rows.stop for shard in self._shards]

    def within(self, rows: range) -> Shards:
        """Those that may hold a row of the batch between these bounds; at least one."""
        first = bisect_right(self._stops, rows.start // self.repeat)
        end = bisect_left(self._starts, -(-rows.stop // self.repeat))
        return self._shards[first:end] or self._shards[:1]


@dataclass(frozen=True)
class Sources:
    """Where the columns of a call are, of all shards."""

    calls: tuple[_CallShards, ...]

    def within(self, rows: range) -> tuple[tuple[Source, ...], list[Any]]:
        """What a worker needs for some rows: the shards that may have them, and Ray's references.

        Args:
            rows: bounds of the batch's rows.
        """
        found = [(held, held.within(rows)) for held in self.calls]
        sources = tuple(Source(len(shards), held.names, held.repeat) for held, shards in found)
        return sources, [shard.reference for _, shards in found for shard in shards]
