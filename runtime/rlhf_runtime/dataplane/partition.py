"""How the rows of a batch are cut over ranks, mini-batches and micro-batches.

Pure and deterministic: every rank computes the same cut, and the driver, which sees no row, knows
among which rows a rank's are.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Rows
from rlhf_runtime.dataplane.shards import ShardIndex

WINDOW_PARTS = 8
"""Neighbouring parts that balance their tokens among themselves: as many as a node mostly has
devices. A rank then needs the shards of one window, or two, however many ranks there are."""

UNSPLIT_GROUPS_PER_SLICE = 8
"""With so many groups for each part, keeping them whole costs little balance."""


@dataclass(frozen=True)
class BatchShape:
    """The rows of a batch, known before any of them is there: those of group g are
    `g * rows_per_group` and the following."""

    num_groups: int
    """Prompts."""
    rows_per_group: int = 1
    """Responses to each."""

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return self.num_groups * self.rows_per_group

    def repeated(self, samples: int) -> BatchShape:
        """With so many rows for each of these."""
        return BatchShape(self.num_groups, self.rows_per_group * samples)

    def mini_batches(self, count: int) -> list[range]:
        """Groups of each of so many mini-batches: every n-th. Some are empty where there are fewer
        groups.

        They do not depend on ranks, and a rank that holds neighbouring groups holds some of every
        mini-batch.
        """
        return [range(number, self.num_groups, count) for number in range(count)]

    def concatenated(self, other: BatchShape) -> BatchShape:
        """With another's rows after these; both have equally many for each group."""
        return BatchShape(self.num_groups + other.num_groups, self.rows_per_group)


@dataclass(frozen=True)
class Slice:
    """One of equal parts of a batch."""

    index: int
    """From 0."""
    count: int
    """Parts in all."""


class RowSubset(StrEnum):
    """Which rows of a batch a call works on, where others begin before its last row is there."""

    ALL = "All"
    """Every row."""
    FINISHED = "Ended"
    """Those whose responses had ended when few were left."""
    UNFINISHED = "Left"
    """The others."""


@dataclass(frozen=True)
class RowSpan:
    """Some of the rows of some groups."""

    groups: range
    """In ascending order."""
    rows_per_group: int
    positions: range
    """Neighbours among all rows of these groups."""

    @property
    def bounds(self) -> range:
        """From the first of its rows to the last; not all in between are its own."""
        if not self.positions:
            return range(0)
        return range(self._row(self.positions[0]), self._row(self.positions[-1]) + 1)

    def rows(self) -> Rows:
        """Their numbers in the batch, in ascending order."""
        positions = np.arange(self.positions.start, self.positions.stop, dtype=np.int64)
        group, sample = np.divmod(positions, self.rows_per_group)
        rows: Rows = (self.groups.start + group * self.groups.step) * self.rows_per_group + sample
        return rows

    def _row(self, position: int) -> int:
        group, sample = divmod(position, self.rows_per_group)
        return self.groups[group] * self.rows_per_group + sample


def contiguous_rows(groups: range, rows_per_group: int, batch_slice: Slice) -> RowSpan:
    """The rows of a part's groups: neighbours, as many groups for each part as for any other, or
    one more. Parts are empty where there are fewer groups than parts."""
    return _group_range(
        groups, rows_per_group, batch_slice.index, batch_slice.index + 1, batch_slice.count
    )


@dataclass(frozen=True)
class Window:
    """What neighbouring parts share out among themselves."""

    span: RowSpan
    batch_slice: Slice
    """The part among those of the window."""


def balancing_window(
    groups: range, rows_per_group: int, batch_slice: Slice, keep_groups: bool = False
) -> Window:
    """The window of a part: rows in proportion to the parts that it has.

    Where groups are many, or are to be whole, none is in two windows.
    """
    first = batch_slice.index - batch_slice.index % WINDOW_PARTS
    end = min(first + WINDOW_PARTS, batch_slice.count)
    window_slice = Slice(batch_slice.index - first, end - first)
    if keep_groups or len(groups) >= UNSPLIT_GROUPS_PER_SLICE * batch_slice.count:
        return Window(
            _group_range(groups, rows_per_group, first, end, batch_slice.count), window_slice
        )
    count = len(groups) * rows_per_group
    positions = range(count * first // batch_slice.count, count * end // batch_slice.count)
    return Window(RowSpan(groups, rows_per_group, positions), window_slice)


def _group_range(groups: range, rows_per_group: int, first: int, end: int, count: int) -> RowSpan:
    """The rows of parts `first` to `end` of `count`, in whole groups."""
    bounds = [len(groups) * part // count * rows_per_group for part in (first, end)]
    return RowSpan(groups, rows_per_group, range(*bounds))


def balance_tokens(index: ShardIndex, parts: int, keep_groups: bool = False) -> list[Rows]:
    """Rows for each part so that tokens are balanced: the longest first, to the least loaded part.

    Where groups are many they stay whole, so that responses can share their prompt's computation,
    and where they have to; else rows are dealt one by one. No part has more than the longest
    group's, or row's, tokens above another. A part's row numbers are in ascending order.
    """
    if parts == 1:
        return [np.sort(index.rows)]
    distinct, group_of = np.unique(index.groups, return_inverse=True)
    if not keep_groups and len(distinct) < UNSPLIT_GROUPS_PER_SLICE * parts:
        owner = _assign_greedily(index.lengths, index.rows, parts)
    else:
        tokens = np.bincount(group_of, index.lengths, minlength=len(distinct))
        owner = _assign_greedily(tokens, distinct, parts)[group_of]
    return [np.sort(index.rows[owner == part]) for part in range(parts)]


def _assign_greedily(
    sizes: NDArray[np.number], keys: NDArray[np.int64], parts: int
) -> NDArray[np.int64]:
    """The part of each item: the largest first, equal ones by key, to the least loaded part."""
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
