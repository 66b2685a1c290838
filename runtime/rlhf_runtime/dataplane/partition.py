"""How the rows of a batch are cut over data-parallel ranks: pure, deterministic, equal on all ranks."""

from __future__ import annotations

import heapq

import numpy as np

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex


def contiguous(index: ShardIndex, parts: int) -> list[Rows]:
    """Consecutive rows for each part; groups stay whole; parts hold about equally many tokens.

    `index` lists all rows in order (see `shards.merge`); rows of a group must be neighbours.
    """
    total = len(index.rows)
    if total == 0:
        return [np.empty(0, dtype=np.int64) for _ in range(parts)]
    is_start = np.ones(total, dtype=bool)
    is_start[1:] = index.groups[1:] != index.groups[:-1]
    starts = np.flatnonzero(is_start)
    if len(starts) != len(np.unique(index.groups)):
        raise ValueError("rows of a group are not neighbours: cannot cut the batch between groups")
    tokens_before = np.concatenate([[0], np.cumsum(index.lengths, dtype=np.int64)])
    boundaries = np.concatenate([starts, [total]])
    targets = tokens_before[-1] * np.arange(1, parts) / parts
    nearest = np.abs(tokens_before[boundaries][None, :] - targets[:, None]).argmin(axis=1)
    cuts = [0, *np.maximum.accumulate(boundaries[nearest]).tolist(), total]
    return [np.arange(cuts[i], cuts[i + 1], dtype=np.int64) for i in range(parts)]


def balanced(index: ShardIndex, parts: int) -> list[Rows]:
    """Rows for each part so that tokens are balanced: the longest first, to the least loaded part.

    A part's rows are returned in ascending order. `index.rows` are kept as row numbers.
    """
    if parts == 1:
        return [np.sort(index.rows)]
    order = np.lexsort((index.rows, -index.lengths.astype(np.int64)))
    loads = [(0, 0, part) for part in range(parts)]
    members: list[list[int]] = [[] for _ in range(parts)]
    for position in order:
        tokens, count, part = heapq.heappop(loads)
        members[part].append(int(index.rows[position]))
        heapq.heappush(loads, (tokens + int(index.lengths[position]), count + 1, part))
    return [np.sort(np.asarray(rows, dtype=np.int64)) for rows in members]


def mini_batches(index: ShardIndex, groups_per_batch: int) -> list[ShardIndex]:
    """The batch cut into mini-batches of so many groups in order; the last may be smaller.

    Independent of ranks, so that training does not depend on how many there are.
    """
    distinct = np.unique(index.groups)
    batches = []
    for begin in range(0, len(distinct), groups_per_batch):
        wanted = np.isin(index.groups, distinct[begin : begin + groups_per_batch])
        batches.append(index.take(np.flatnonzero(wanted)))
    return batches


def micro_batches(lengths: np.ndarray, max_padded_tokens: int) -> list[Rows]:
    """Positions cut into micro-batches of at most so many padded tokens, neighbours alike in length.

    A row longer than the limit is alone. Positions refer to `lengths`.
    """
    order = np.argsort(lengths, kind="stable")
    batches: list[Rows] = []
    begin = 0
    for end in range(1, len(order) + 1):
        if end == len(order) or (end + 1 - begin) * int(lengths[order[end]]) > max_padded_tokens:
            batches.append(order[begin:end].astype(np.int64))
            begin = end
    return batches
