"""Which rows a shard holds, and how rows are gathered from shards.

A batch has global row numbers 0 .. n-1. Every producing rank holds a shard: some of these rows, listed
by a `ShardIndex`. Consumers gather the rows they need from whichever shards hold them, so producer and
consumer need not agree on how a batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column, Rows, concatenate


@dataclass(frozen=True)
class ShardIndex:
    """The rows of one shard: global numbers, the group of each, and its length in tokens."""

    rows: Rows
    groups: NDArray[np.int64]
    lengths: NDArray[np.int32]

    def take(self, positions: Rows) -> ShardIndex:
        """The entries at the given positions."""
        return ShardIndex(self.rows[positions], self.groups[positions], self.lengths[positions])


def merge(shards: Sequence[ShardIndex]) -> ShardIndex:
    """All rows of a batch in the order of their global numbers."""
    rows = np.concatenate([shard.rows for shard in shards])
    order = np.argsort(rows, kind="stable")
    if not (rows[order] == np.arange(len(rows))).all():
        raise ValueError(
            f"shards do not hold every row exactly once: got {len(rows)} entries, "
            f"{len(np.unique(rows))} distinct, the largest {int(rows.max()) if len(rows) else 'none'}"
        )
    return ShardIndex(
        rows[order],
        np.concatenate([shard.groups for shard in shards])[order],
        np.concatenate([shard.lengths for shard in shards])[order],
    )


def gather(
    rows: Rows, held: Sequence[Rows], fetch: Callable[[Sequence[int]], Sequence[Column]]
) -> Column:
    """The given global rows, in order, of one column.

    `held[i]` lists the rows of shard i; `fetch` returns the column of the shards it is asked for, and
    is asked only for those that hold a wanted row.
    """
    if len(held) == 1 and len(rows) == len(held[0]) and bool((rows == held[0]).all()):
        return fetch([0])[0]
    size = 1 + max((int(shard.max()) for shard in held if len(shard)), default=-1)
    owner = np.full(size, -1, dtype=np.int64)
    position = np.zeros(size, dtype=np.int64)
    for number, shard in enumerate(held):
        owner[shard] = number
        position[shard] = np.arange(len(shard))
    owners = owner[rows]
    if (owners < 0).any():
        raise ValueError(f"rows that no shard holds: got {rows[owners < 0][:8].tolist()}")
    needed = [int(number) for number in np.unique(owners)]
    if not needed:
        return fetch([0])[0].take(np.empty(0, dtype=np.int64))
    columns = fetch(needed)
    whole = concatenate(columns)
    sizes = [len(held[number]) for number in needed]
    offsets = np.zeros(len(held), dtype=np.int64)
    offsets[needed] = np.cumsum([0, *sizes[:-1]])
    return whole.take(offsets[owners] + position[rows])
