"""Which rows a shard holds, and how rows are gathered from shards.

A batch has global row numbers 0 .. n-1. Every producing rank holds a shard: some of these rows,
listed by a `ShardIndex`. Consumers gather the rows they need from whichever shards hold them, so
producer and consumer need not agree on how a batch is cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column, Rows, concatenate, concatenate_rows, is_range


@dataclass(frozen=True)
class ShardIndex:
    """The rows of one shard: global numbers, the group of each, and its length in tokens.

    Raises:
        ValueError: arrays of different lengths.
    """

    rows: Rows
    groups: NDArray[np.int64]
    lengths: NDArray[np.int32]

    def __post_init__(self) -> None:
        if not len(self.rows) == len(self.groups) == len(self.lengths):
            raise ValueError(
                f"an index does not describe each of its rows once: got {len(self.rows)} rows, "
                f"{len(self.groups)} groups and {len(self.lengths)} lengths; give one of each per "
                "row"
            )

    def to_bytes(self) -> bytes:
        """What travels: bytes, which no pickler looks into."""
        return self.rows.tobytes() + self.groups.tobytes() + self.lengths.tobytes()

    @staticmethod
    def from_bytes(message: bytes) -> ShardIndex:
        """What was sent; the arrays are read-only."""
        count = len(message) // 20
        numbers = np.frombuffer(message, np.int64, 2 * count)
        lengths = np.frombuffer(message, np.int32, count, 16 * count)
        return ShardIndex(numbers[:count], numbers[count:], lengths)

    def take(self, positions: Rows) -> ShardIndex:
        """The entries at the given positions; the index itself if that is all of it."""
        if is_range(positions, len(self.rows)):
            return self
        return ShardIndex(self.rows[positions], self.groups[positions], self.lengths[positions])

    def find(self, rows: Rows) -> ShardIndex:
        """The entries of the given rows, in their order; the index lists its rows in order.

        Raises:
            ValueError: a row that it does not have.
        """
        positions = np.searchsorted(self.rows, rows)
        missing = positions >= len(self.rows)
        missing |= self.rows[np.where(missing, 0, positions)] != rows if len(self.rows) else True
        if missing.any():
            raise ValueError(
                f"rows that no shard holds: got {rows[missing][:8].tolist()}, allowed the "
                f"{len(self.rows)} rows that were sent; ask for rows of the same batch"
            )
        return self.take(positions)

    def repeat(self, times: int) -> ShardIndex:
        """Every row so many times, one after the other; the index itself if once."""
        if times == 1:
            return self
        rows = (self.rows[:, None] * times + np.arange(times)).reshape(-1)
        return ShardIndex(rows, np.repeat(self.groups, times), np.repeat(self.lengths, times))

    def shifted(self, groups: int, rows_per_group: int) -> ShardIndex:
        """The same rows behind so many groups of others; the index itself if behind none."""
        if groups == 0:
            return self
        return ShardIndex(self.rows + groups * rows_per_group, self.groups + groups, self.lengths)


@dataclass(frozen=True)
class Shard:
    """What one worker wrote in one call: one object, however many columns it has."""

    index: ShardIndex
    columns: Mapping[str, Column]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a call: what Ray's pickler is quickest at."""
        return _read_shard, (self.index.to_bytes(), dict(self.columns))


def _read_shard(index: bytes, columns: Mapping[str, Column]) -> Shard:
    return Shard(ShardIndex.from_bytes(index), columns)


def merge_indices(shards: Sequence[ShardIndex]) -> ShardIndex:
    """The rows of some shards in the order of their global numbers.

    Raises:
        ValueError: a row that two shards hold.
    """
    if len(shards) == 1 and bool((np.diff(shards[0].rows) > 0).all()):
        return shards[0]
    rows = np.concatenate([shard.rows for shard in shards])
    order = np.argsort(rows, kind="stable")
    duplicates = np.flatnonzero(np.diff(rows[order]) == 0)
    if len(duplicates):
        raise ValueError(
            f"shards hold a row twice: got row {int(rows[order][duplicates[0]])} among {len(rows)} "
            f"entries of {len(shards)} shards; have the shards of one call list each row once"
        )
    groups = np.concatenate([shard.groups for shard in shards])
    lengths = np.concatenate([shard.lengths for shard in shards])
    return ShardIndex(rows, groups, lengths).take(order)


@dataclass(frozen=True)
class GatherPlan:
    """Where some wanted rows lie among shards. Serves every column that is cut in this way."""

    shards: tuple[int, ...]
    """Shards with at least one of the rows; the first shard if no row is wanted."""
    positions: tuple[Rows, ...]
    """For each of these shards the positions of its wanted rows."""
    order: Rows
    """For every wanted row its place among these positions, put one after the other."""

    def gather(self, columns: Sequence[Column]) -> Column:
        """The wanted rows in order, from the column's parts in `shards`.

        A part of which everything is wanted is not copied if it is the only one.
        """
        if (
            len(columns) > 1
            and columns[0].lengths is None
            and is_range(self.order, len(self.order))
        ):
            return concatenate_rows(columns, self.positions)
        parts = zip(columns, self.positions, strict=True)
        return concatenate([column.take(positions) for column, positions in parts]).take(self.order)


def plan_gather(rows: Rows, shard_rows: Sequence[Rows]) -> GatherPlan:
    """Find rows by global number; `held[i]` lists the rows of shard i.

    Raises:
        ValueError: a row that no shard holds.
    """
    size = 1 + max((int(shard.max()) for shard in shard_rows if len(shard)), default=-1)
    owner = np.full(size + 1, -1, dtype=np.int64)  # the last entry: of rows that nobody can hold
    position = np.zeros(size, dtype=np.int64)
    for number, shard in enumerate(shard_rows):
        owner[shard] = number
        position[shard] = np.arange(len(shard))
    owners = owner[np.where((rows >= 0) & (rows < size), rows, size)]
    if (owners < 0).any():
        raise ValueError(
            f"rows that no shard holds: got {rows[owners < 0][:8].tolist()}, allowed the "
            f"{sum(map(len, shard_rows))} rows of {len(shard_rows)} shards; ask for rows of the "
            "same batch"
        )
    counts = np.bincount(owners, minlength=len(shard_rows))
    shards = np.flatnonzero(counts) if len(rows) else np.zeros(1, dtype=np.int64)
    by_shard = np.argsort(owners, kind="stable")
    order = np.empty(len(rows), dtype=np.int64)
    order[by_shard] = np.arange(len(rows))
    positions = np.split(position[rows[by_shard]], np.cumsum(counts[shards])[:-1])
    return GatherPlan(tuple(shards.tolist()), tuple(positions), order)
