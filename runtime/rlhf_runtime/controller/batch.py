"""A batch as the driver sees it: references to column shards, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rlhf_flow.batches import BatchValue
from rlhf_runtime.workers.orders import ColumnRef, Source

IndexRef = Any
"""A Ray object reference to the message of a `ShardIndex`."""


@dataclass(frozen=True)
class Shards:
    """A column's shards: for each a reference to its index and one to its values."""

    indexes: tuple[IndexRef, ...]
    columns: tuple[ColumnRef, ...]
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""


@dataclass(frozen=True)
class Batch:
    """Columns over the same rows, all by reference; `base` lists them, and so does every column."""

    base: tuple[IndexRef, ...]
    columns: Mapping[str, Shards]
    samples: int = 1
    """Rows for each row that the step was given."""

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
        columns = {names.get(name, name): shards for name, shards in self.columns.items()}
        return replace(self, columns=columns)

    def broadcast(self, like: BatchValue, /) -> Batch:
        """The columns with the rows of another batch that was generated from the same ones."""
        assert isinstance(like, Batch)
        times = like.samples // self.samples
        columns = {
            name: replace(shards, repeat=shards.repeat * times)
            for name, shards in self.columns.items()
        }
        return replace(like, columns=columns)

    def sources(self, fields: tuple[str, ...]) -> tuple[tuple[Source, ...], list[IndexRef]]:
        """Where the given fields lie, and the indexes to send along; without fields the base's."""
        if not fields:
            return (), list(self.base)
        indexes: list[IndexRef] = []
        first_of: dict[tuple[IndexRef, ...], int] = {}
        grouped: dict[tuple[tuple[IndexRef, ...], int], dict[str, tuple[ColumnRef, ...]]] = {}
        for field in sorted(fields, key=lambda name: self.columns[name].repeat > 1):
            shards = self.columns[field]
            if shards.indexes not in first_of:
                first_of[shards.indexes] = len(indexes)
                indexes.extend(shards.indexes)
            grouped.setdefault((shards.indexes, shards.repeat), {})[field] = shards.columns
        sources = tuple(
            Source(first_of[held], columns, repeat) for (held, repeat), columns in grouped.items()
        )
        return sources, indexes
