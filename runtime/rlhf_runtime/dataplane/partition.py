"""Partition of a batch's rows over ranks, mini-batches and micro-batches.

Pure and deterministic: every rank computes the same partition. The driver, which sees no row, knows
bounds of a rank's rows.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex

# Slices per window, about the devices of a node. Tokens are balanced within a window only, so a
# rank needs the shards of one or two windows, however many ranks there are.
WINDOW_PARTS = 8

# With at least so many groups per slice, groups are not split: the balance hardly suffers.
UNSPLIT_GROUPS_PER_SLICE = 8


@dataclass(frozen=True)
class BatchShape:
    """Shape of a batch, known before its rows exist. Group g has the rows from `g * rows_per_group`
    on."""

    num_groups: int
    """Prompts."""
    rows_per_group: int = 1
    """Responses per prompt."""

    @property
    def num_rows(self) -> int:
        return self.num_groups * self.rows_per_group

    def repeated(self, samples: int) -> BatchShape:
        """Return the shape with `samples` rows for each of these rows."""
        return BatchShape(self.num_groups, self.rows_per_group * samples)

    def mini_batches(self, count: int) -> list[range]:
        """Return the groups of each mini-batch: every `count`-th. Some are empty if there are fewer
        groups."""
        # Independent of the number of ranks. A rank with consecutive groups has some of every
        # mini-batch.
        return [range(number, self.num_groups, count) for number in range(count)]

    def concatenated(self, other: BatchShape) -> BatchShape:
        """Return the shape with another batch's rows after these; both have the same rows per
        group."""
        return BatchShape(self.num_groups + other.num_groups, self.rows_per_group)


@dataclass(frozen=True)
class Slice:
    """One of `count` equal slices of a batch."""

    index: int
    """From 0."""
    count: int
    """Number of slices."""


class RowSubset(StrEnum):
    """Rows that a call works on, if it may begin before all responses have ended."""

    ALL = "All"
    """All rows."""
    FINISHED = "Ended"
    """Rows whose responses had ended when few were running."""
    UNFINISHED = "Left"
    """The other rows."""


@dataclass(frozen=True)
class RowSpan:
    """Some of the rows of some groups."""

    groups: range
    """In ascending order."""
    rows_per_group: int
    positions: range
    """Consecutive positions among all rows of these groups."""

    @property
    def bounds(self) -> range:
        """Bounds from the first row to the last; rows in between may be others'."""
        if not self.positions:
            return range(0)
        return range(self._row(self.positions[0]), self._row(self.positions[-1]) + 1)

    def rows(self) -> Rows:
        """Return the row numbers in the batch, in ascending order."""
        positions = np.arange(self.positions.start, self.positions.stop, dtype=np.int64)
        group, sample = np.divmod(positions, self.rows_per_group)
        rows: Rows = (self.groups.start + group * self.groups.step) * self.rows_per_group + sample
        return rows

    def _row(self, position: int) -> int:
        group, sample = divmod(position, self.rows_per_group)
        return self.groups[group] * self.rows_per_group + sample


def contiguous_rows(groups: range, rows_per_group: int, batch_slice: Slice) -> RowSpan:
    """Return the rows of a slice's groups: consecutive, and per slice equally many groups or one
    more.

    Slices are empty if there are fewer groups than slices.
    """
    return _group_range(
        groups, rows_per_group, batch_slice.index, batch_slice.index + 1, batch_slice.count
    )


@dataclass(frozen=True)
class Window:
    """Rows that neighbouring slices divide among each other."""

    span: RowSpan
    batch_slice: Slice
    """The slice among those of the window."""


def balancing_window(
    groups: range, rows_per_group: int, batch_slice: Slice, keep_groups: bool = False
) -> Window:
    """Return the window of a slice: rows in proportion to the slices that it has.

    With many groups, or with `keep_groups`, no group is in two windows.
    """
    # Windows are aligned: all of their slices compute the same one.
    first = batch_slice.index - batch_slice.index % WINDOW_PARTS
    end = min(first + WINDOW_PARTS, batch_slice.count)
    window_slice = Slice(batch_slice.index - first, end - first)
    if keep_groups or len(groups) >= UNSPLIT_GROUPS_PER_SLICE * batch_slice.count:
        return Window(
            _group_range(groups, rows_per_group, first, end, batch_slice.count), window_slice
        )
    # Few groups: windows cut through groups, for balance.
    count = len(groups) * rows_per_group
    positions = range(count * first // batch_slice.count, count * end // batch_slice.count)
    return Window(RowSpan(groups, rows_per_group, positions), window_slice)


def _group_range(groups: range, rows_per_group: int, first: int, end: int, count: int) -> RowSpan:
    """Return the rows of slices `first` to `end` of `count`, in whole groups."""
    bounds = [len(groups) * part // count * rows_per_group for part in (first, end)]
    return RowSpan(groups, rows_per_group, range(*bounds))


def balance_tokens(index: ShardIndex, parts: int, keep_groups: bool = False) -> list[Rows]:
    """Assign rows to parts so that tokens are balanced: the longest first, to the least loaded
    part.

    Groups stay together if there are many, or with `keep_groups`; else rows are assigned one by
    one. Token counts of two parts differ by at most the longest group, or row. Row numbers of a
    part are in ascending order.
    """
    if parts == 1:
        return [np.sort(index.rows)]
    distinct, group_of = np.unique(index.groups, return_inverse=True)
    # Responses of a group can share their prompt's computation.
    if not keep_groups and len(distinct) < UNSPLIT_GROUPS_PER_SLICE * parts:
        owner = _assign_greedily(index.lengths, index.rows, parts)
    else:
        tokens = np.bincount(group_of, index.lengths, minlength=len(distinct))
        owner = _assign_greedily(tokens, distinct, parts)[group_of]
    return [np.sort(index.rows[owner == part]) for part in range(parts)]


def _assign_greedily(
    sizes: NDArray[np.number], keys: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
    """Return the part of each item: the largest first, equal ones by key, to the least loaded
    part."""
    order = np.lexsort((keys, -sizes.astype(np.int64)))
    # A load is one number, which compares as (tokens, items, part): quicker than a tuple.
    steps = (sizes[order].astype(np.int64) * (len(order) + 1) + 1) * parts
    loads = list(range(parts))  # a heap
    owners = []
    for step in steps.tolist():
        owners.append(loads[0])
        heapq.heapreplace(loads, loads[0] + step)
    owner = np.empty(len(order), dtype=np.int64)
    owner[order] = np.asarray(owners, dtype=np.int64) % parts
    return owner
