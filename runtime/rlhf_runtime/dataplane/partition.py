"""How the rows of a batch are cut over ranks, mini-batches and micro-batches.

Pure and deterministic: every rank computes the same cut from the same index.
"""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex


def contiguous(index: ShardIndex, parts: int) -> list[Rows]:
    """Consecutive rows for each part; groups stay whole.

    Every part's tokens are within those of the largest group of an equal share. Parts are empty
    where there are fewer groups than parts. `index` lists all rows in order (see `shards.merge`).

    Raises:
        ValueError: rows of a group that are not neighbours.
    """
    total = len(index.rows)
    if total == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(parts)]
    starts = np.flatnonzero(np.concatenate([[True], index.groups[1:] != index.groups[:-1]]))
    if len(starts) != len(np.unique(index.groups)):
        raise ValueError(
            f"rows of a group are not neighbours: got {len(starts)} runs of equal group numbers "
            f"for {len(np.unique(index.groups))} groups; number the rows group by group"
        )
    boundaries = np.concatenate([starts, [total]])
    tokens_before = np.concatenate([[0], np.cumsum(index.lengths, dtype=np.int64)])[boundaries]
    targets = tokens_before[-1] * np.arange(1, parts) / parts
    nearest = boundaries[_nearest(tokens_before, targets)].tolist()
    cuts = [0, *nearest, total]
    return [np.arange(cuts[i], cuts[i + 1], dtype=np.int64) for i in range(parts)]


def balanced(index: ShardIndex, parts: int) -> list[Rows]:
    """Rows for each part so that tokens are balanced: the longest first, to the least loaded part.

    No part has more than the longest row's tokens above another. A part's row numbers are in
    ascending order.
    """
    if parts == 1:
        return [np.sort(index.rows)]
    order = np.lexsort((index.rows, -index.lengths.astype(np.int64)))
    loads = [(0, 0, part) for part in range(parts)]  # tokens, rows, part: a heap
    members: list[list[int]] = [[] for _ in range(parts)]
    for row, length in zip(index.rows[order].tolist(), index.lengths[order].tolist(), strict=True):
        tokens, count, part = loads[0]
        members[part].append(row)
        heapq.heapreplace(loads, (tokens + length, count + 1, part))
    return [np.sort(np.asarray(rows, dtype=np.int64)) for rows in members]


def mini_batches(index: ShardIndex, groups_per_batch: int) -> list[ShardIndex]:
    """The batch cut into mini-batches of so many groups in order; the last may be smaller.

    Independent of ranks, so that training does not depend on how many there are.
    """
    distinct, group = np.unique(index.groups, return_inverse=True)
    batch = group // groups_per_batch
    count = -(-len(distinct) // groups_per_batch)
    return [index.take(np.flatnonzero(batch == number)) for number in range(count)]


def micro_batches(lengths: NDArray[np.integer], max_padded_tokens: int) -> list[Rows]:
    """Positions cut into micro-batches of at most so many padded tokens, alike in length.

    Rows are padded to the longest of their micro-batch. A row longer than the limit is alone.
    Positions refer to `lengths`.
    """
    order = np.argsort(lengths, kind="stable").astype(np.int64, copy=False)
    begin, cuts = 0, []
    for end, length in enumerate(np.maximum(lengths[order], 1).tolist()):
        if end > begin and (end + 1 - begin) * length > max_padded_tokens:
            cuts.append(end)
            begin = end
    return np.split(order, cuts) if len(order) else []


def _nearest(ascending: NDArray[np.int64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each target the position of the value closest to it; the lower one of two."""
    above = np.searchsorted(ascending, targets).clip(max=len(ascending) - 1)
    below = (above - 1).clip(min=0)
    return np.where(targets - ascending[below] <= ascending[above] - targets, below, above)
