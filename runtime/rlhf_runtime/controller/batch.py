"""A batch as the driver sees it: references to column shards, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Batch:
    """Columns over the same rows, all by reference; `base` lists them, and so does every column."""

    base: tuple[IndexRef, ...]
    columns: Mapping[str, Shards]

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.columns)

    def __or__(self, other: BatchValue, /) -> Batch:
        """Both's columns; where both have one, the other's. The rows must be the same."""
        assert isinstance(other, Batch)
        return Batch(self.base, {**self.columns, **other.columns})

    def sources(self, fields: tuple[str, ...]) -> tuple[tuple[Source, ...], list[IndexRef]]:
        """Where the given fields lie, and the indexes to send along; without fields the base's."""
        if not fields:
            return (), list(self.base)
        indexes: list[IndexRef] = []
        first_of: dict[tuple[IndexRef, ...], int] = {}
        grouped: dict[tuple[IndexRef, ...], dict[str, tuple[ColumnRef, ...]]] = {}
        for field in fields:
            shards = self.columns[field]
            if shards.indexes not in first_of:
                first_of[shards.indexes] = len(indexes)
                indexes.extend(shards.indexes)
            grouped.setdefault(shards.indexes, {})[field] = shards.columns
        sources = tuple(Source(first_of[held], columns) for held, columns in grouped.items())
        return sources, indexes
