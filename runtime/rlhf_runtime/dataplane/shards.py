"""Shards of a batch, and how rows are gathered from them.

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
        ValueError: the arrays have different lengths.
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
        """Serialize the three arrays."""
        # Bytes: no pickler has to inspect them.
        return self.rows.tobytes() + self.groups.tobytes() + self.lengths.tobytes()

    @staticmethod
    def from_bytes(message: bytes) -> ShardIndex:
        """Deserialize; the arrays are read-only."""
        # 8 bytes for a row number, 8 for a group, 4 for a length.
        count = len(message) // 20
        numbers = np.frombuffer(message, np.int64, 2 * count)
        lengths = np.frombuffer(message, np.int32, count, 16 * count)
        return ShardIndex(numbers[:count], numbers[count:], lengths)

    def take(self, positions: Rows) -> ShardIndex:
        """Return the entries at some positions; the index itself if these are all."""
        if is_range(positions, len(self.rows)):
            return self
        return ShardIndex(self.rows[positions], self.groups[positions], self.lengths[positions])

    def find(self, rows: Rows) -> ShardIndex:
        """Return the entries of some rows, in their order. This index must be in ascending order.

        Raises:
            ValueError: the index does not have a row.
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
        """Repeat every row, copies next to each other; the index itself for one time."""
        if times == 1:
            return self
        rows = (self.rows[:, None] * times + np.arange(times)).reshape(-1)
        return ShardIndex(rows, np.repeat(self.groups, times), np.repeat(self.lengths, times))

    def shifted(self, groups: int, rows_per_group: int) -> ShardIndex:
        """Return the index behind `groups` other groups; the index itself for none."""
        if groups == 0:
            return self
        return ShardIndex(self.rows + groups * rows_per_group, self.groups + groups, self.lengths)


@dataclass(frozen=True)
class Shard:
    """Result of one call on one worker: one object, however many columns it has."""

    index: ShardIndex
    columns: Mapping[str, Column]

    def __reduce__(self) -> tuple[Any, ...]:
        # Ray's pickler is quickest with calls.
        return _read_shard, (self.index.to_bytes(), dict(self.columns))


def _read_shard(index: bytes, columns: Mapping[str, Column]) -> Shard:
    return Shard(ShardIndex.from_bytes(index), columns)


def merge_indices(shards: Sequence[ShardIndex]) -> ShardIndex:
    """Merge indices in the order of global row numbers.

    Raises:
        ValueError: two shards have the same row.
    """
    # The usual case: a rank reads one shard.
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
    """Locations of requested rows among shards. Valid for every column that is cut in this way."""

    shards: tuple[int, ...]
    """Shards with at least one of the rows; without rows the first shard."""
    positions: tuple[Rows, ...]
    """Positions of the requested rows in each of these shards."""
    order: Rows
    """For every requested row its index among these positions, put one after the other."""

    def gather(self, columns: Sequence[Column]) -> Column:
        """Gather the requested rows in order, from the column's parts in `shards`.

        If all rows of a single part are requested, it is not copied.
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
    """Find rows by global number. `shard_rows[i]` lists the rows of shard i.

    Raises:
        ValueError: no shard has a row.
    """
    size = 1 + max((int(shard.max()) for shard in shard_rows if len(shard)), default=-1)
    # A dense table: looking up many rows is quicker than a search.
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
