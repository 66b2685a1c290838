"""A batch as the driver sees it: references to column shards, nothing else."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rlhf_flow.step.batch import BatchValue
from rlhf_runtime.calls.requests import ColumnSource, Segment
from rlhf_runtime.controller.nodes import Node
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset


@dataclass(frozen=True)
class ShardRef:
    """A shard by reference."""

    reference: Any
    """Ray's, to a `Shard`."""
    rows: range
    """Among which its rows are; other shards may have some of these."""
    node: Node | None = None
    """Where it was made, if that is known."""
    subset: RowSubset = RowSubset.ALL
    """Of the batch, which it has rows of."""


Shards = tuple[ShardRef, ...]
"""Those of one call, in the order of their rows."""


@dataclass(eq=False)
class LateShards:
    """Those of a call's second part, which is sent later than its result is read."""

    shards: Shards = ()
    """None, until it is sent."""


@dataclass(frozen=True)
class ColumnSegment:
    """What one call wrote, as rows of a batch."""

    early: Shards
    """Those that were there when it was sent."""
    late: LateShards | None = None
    """Those that come later, where it is sent in two parts."""
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""
    groups_before: int = 0
    """Groups of the batch before its first."""

    @property
    def shards(self) -> Shards:
        """All that were sent so far."""
        return self.early if self.late is None else (*self.early, *self.late.shards)

    def with_shards(self, shards: Shards) -> ColumnSegment:
        """Some of the shards."""
        return replace(self, early=shards, late=None)


@dataclass(frozen=True)
class ColumnLocation:
    """Where a column is."""

    segments: tuple[ColumnSegment, ...]
    """One after the other: several where batches were concatenated."""
    names: tuple[str, ...]
    """What each one's call named it."""


@dataclass(frozen=True)
class Batch:
    """Columns over the same rows, all by reference; `base` lists them, and so does every column."""

    base: tuple[ColumnSegment, ...]
    columns: Mapping[str, ColumnLocation]
    shape: BatchShape

    @property
    def fields(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.columns)

    @property
    def shards(self) -> Shards:
        """Those that hold its rows: of what one call wrote."""
        return tuple(shard for segments in self.base for shard in segments.shards)

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
        columns = {names.get(name, name): column for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def broadcast(self, like: BatchValue, /) -> Batch:
        """The columns with the rows of another batch that was generated from the same ones."""
        assert isinstance(like, Batch)
        times = like.shape.rows_per_group // self.shape.rows_per_group
        columns = {
            name: ColumnLocation(
                tuple(replace(each, repeat=each.repeat * times) for each in column.segments),
                column.names,
            )
            for name, column in self.columns.items()
        }
        return replace(like, columns=columns)

    def concat(self, other: BatchValue, /) -> Batch:
        """These rows, then those of another batch with the same columns, and as many rows for each
        prompt."""
        assert isinstance(other, Batch)
        before = self.shape.num_groups
        columns = {
            name: ColumnLocation(
                (*column.segments, *_shifted(before, other.columns[name].segments)),
                (*column.names, *other.columns[name].names),
            )
            for name, column in self.columns.items()
            if name in other.columns
        }
        base = (*self.base, *_shifted(before, other.base))
        return Batch(base, columns, self.shape.concatenated(other.shape))

    def with_subset(self, subset: RowSubset) -> Batch:
        """The same columns, as far as they are of a portion of the rows."""
        return self._with(lambda shard: shard.subset is subset)

    def with_shard(self, kept: ShardRef) -> Batch:
        """The same columns, as far as they are in a shard."""
        return self._with(lambda shard: shard is kept)

    def _with(self, keeps: Callable[[ShardRef], bool]) -> Batch:
        def part(segments: tuple[ColumnSegment, ...]) -> tuple[ColumnSegment, ...]:
            return tuple(each.with_shards(tuple(filter(keeps, each.shards))) for each in segments)

        columns = {
            name: replace(column, segments=part(column.segments))
            for name, column in self.columns.items()
        }
        return replace(self, base=part(self.base), columns=columns)

    def nonempty_shards(self, field: str) -> list[ShardRef]:
        """The shards that a column comes in, but those without rows."""
        return [
            shard
            for segments in self.columns[field].segments
            for shard in segments.shards
            if shard.rows
        ]

    def sources(self, fields: Sequence[str]) -> InputSources:
        """Where the given fields are; without fields, the rows."""
        grouped: dict[tuple[ColumnSegment, ...], dict[str, tuple[str, ...]]] = {}
        for field in sorted(fields, key=lambda name: self.columns[name].segments[0].repeat > 1):
            column = self.columns[field]
            grouped.setdefault(column.segments, {})[field] = column.names
        if not grouped:
            grouped[self.base] = {}
        return InputSources(
            tuple(
                tuple(
                    _SegmentIndex(
                        each,
                        self.shape.rows_per_group,
                        {field: stored[number] for field, stored in names.items()},
                    )
                    for number, each in enumerate(segments)
                )
                for segments, names in grouped.items()
            )
        )


def as_batch(
    names: Sequence[str],
    shards: Sequence[ShardRef],
    shape: BatchShape,
    late: LateShards | None = None,
) -> Batch:
    """A batch of what one call wrote.

    Args:
        names: of the columns.
        shards: in the order of their rows.
        extent: of the rows.
        late: where others come later.
    """
    segments = (ColumnSegment(tuple(shards), late),)
    return Batch(segments, {name: ColumnLocation(segments, (name,)) for name in names}, shape)


def _shifted(groups: int, segments: Sequence[ColumnSegment]) -> list[ColumnSegment]:
    return [replace(each, groups_before=each.groups_before + groups) for each in segments]


class _SegmentIndex:
    """The shards of one call, to be asked for those with some rows."""

    def __init__(
        self, segments: ColumnSegment, rows_per_group: int, names: Mapping[str, str]
    ) -> None:
        self._names = names
        self._repeat, self._groups_before = segments.repeat, segments.groups_before
        self._rows_before = segments.groups_before * rows_per_group
        self._shards = (
            tuple(shard for shard in segments.shards if shard.rows) or segments.shards[:1]
        )
        self._starts = [shard.rows.start for shard in self._shards]
        self._stops = [shard.rows.stop for shard in self._shards]

    def for_rows(self, rows: range) -> Shards:
        """Those that may hold a row of the batch between these bounds."""
        begin, end = rows.start - self._rows_before, rows.stop - self._rows_before
        first = bisect_right(self._stops, max(0, begin) // self._repeat)
        last = bisect_left(self._starts, -(-max(0, end) // self._repeat))
        return self._shards[first:last]

    def first(self) -> Shards:
        """One, for who has no rows: from it it learns of what kind columns are."""
        return self._shards[:1]

    def describe(self, shards: Shards) -> Segment:
        """What a worker is told of these."""
        return Segment(len(shards), self._names, self._repeat, self._groups_before)


@dataclass(frozen=True)
class InputSources:
    """Where the columns of a call are, of all shards."""

    sources: tuple[tuple[_SegmentIndex, ...], ...]

    def for_rows(self, rows: range) -> tuple[list[ColumnSource], list[Any]]:
        """What a worker needs for some rows: the shards that may have them, at least one of each
        source, and Ray's references.

        Args:
            rows: bounds of the batch's rows.
        """
        sources: list[ColumnSource] = []
        references: list[Any] = []
        for source in self.sources:
            parts = []
            for each in source:
                if shards := each.for_rows(rows):
                    parts.append(each.describe(shards))
                    references += [shard.reference for shard in shards]
            if not parts:
                shards = source[0].first()
                parts.append(source[0].describe(shards))
                references += [shard.reference for shard in shards]
            sources.append(ColumnSource(tuple(parts)))
        return sources, references
