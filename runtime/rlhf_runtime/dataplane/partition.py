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


WHOLE_GROUPS_PER_PART = 8
"""With so many groups for each part, keeping them whole costs little balance."""


def balanced(index: ShardIndex, parts: int) -> list[Rows]:
    """Rows for each part so that tokens are balanced: the longest first, to the least loaded part.

    Where groups are many they stay whole, so that responses can share their prompt's computation;
    else rows are dealt one by one. No part has more than the longest group's, or row's, tokens
    above another. A part's row numbers are in ascending order.
    """
    if parts == 1:
        return [np.sort(index.rows)]
    if len(np.unique(index.groups)) >= WHOLE_GROUPS_PER_PART * parts:
        return balanced_groups(index, parts)
    owner = _deal(index.lengths, index.rows, parts)
    return [np.sort(index.rows[owner == part]) for part in range(parts)]


def balanced_groups(index: ShardIndex, parts: int) -> list[Rows]:
    """The same with whole groups however few there are: for what compares the rows of a group."""
    distinct, group_of = np.unique(index.groups, return_inverse=True)
    tokens = np.bincount(group_of, index.lengths, minlength=len(distinct))
    owner = _deal(tokens, distinct, parts)[group_of]
    return [np.sort(index.rows[owner == part]) for part in range(parts)]


def _deal(sizes: NDArray[np.number], keys: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
    """The part of each item: the largest first, equal ones by key, to the least loaded part."""
    owner = np.zeros(len(sizes), dtype=np.int64)
    loads = [(0, 0, part) for part in range(parts)]  # tokens, items, part: a heap
    for item in np.lexsort((keys, -sizes.astype(np.int64))).tolist():
        tokens, count, part = loads[0]
        owner[item] = part
        heapq.heapreplace(loads, (tokens + int(sizes[item]), count + 1, part))
    return owner


def mini_batches(index: ShardIndex, groups_per_batch: int) -> list[ShardIndex]:
    """The batch cut into mini-batches of so many groups in order; the last may be smaller.

    Independent of ranks, so that training does not depend on how many there are.
    """
    distinct, group = np.unique(index.groups, return_inverse=True)
    batch = group // groups_per_batch
    count = -(-len(distinct) // groups_per_batch)
    return [index.take(np.flatnonzero(batch == number)) for number in range(count)]


def micro_batches(
    lengths: NDArray[np.integer], max_padded_tokens: int, units: NDArray[np.int64] | None = None
) -> list[Rows]:
    """Positions cut into micro-batches of at most so many padded tokens, alike in length.

    Rows are padded to the longest of their micro-batch. A unit longer than the limit is alone.
    Positions refer to `lengths`.

    Args:
        lengths: of the rows.
        max_padded_tokens: of a micro-batch.
        units: the unit of each row; its rows stay together. None: every row for itself.
    """
    if not len(lengths):
        return []
    own = np.arange(len(lengths)) if units is None else units
    _, unit_of, sizes = np.unique(own, return_inverse=True, return_counts=True)
    longest = np.ones(len(sizes), dtype=np.int64)
    np.maximum.at(longest, unit_of, lengths)
    by_length = np.argsort(longest, kind="stable")
    starts = np.cumsum(sizes[by_length]) - sizes[by_length]
    begin, cuts = 0, []
    for start, size, length in zip(
        starts.tolist(), sizes[by_length].tolist(), longest[by_length].tolist(), strict=True
    ):
        if start > begin and (start + size - begin) * length > max_padded_tokens:
            cuts.append(start)
            begin = start
    order: Rows = np.lexsort((unit_of, longest[unit_of]))
    return np.split(order, cuts)


def _nearest(ascending: NDArray[np.int64], targets: NDArray[np.float64]) -> NDArray[np.int64]:
    """For each target the position of the value closest to it; the lower one of two."""
    above = np.searchsorted(ascending, targets).clip(max=len(ascending) - 1)
    below = (above - 1).clip(min=0)
    return np.where(targets - ascending[below] <= ascending[above] - targets, below, above)
