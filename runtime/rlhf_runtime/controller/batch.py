"""A batch in the driver: references to column shards, without any data."""

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
    """Reference to a shard."""

    reference: Any
    """Ray's reference to a `Shard`."""
    rows: range
    """Bounds of its rows; other shards may have some of the rows in between."""
    node: Node | None = None
    """The node that produced it, if known."""
    subset: RowSubset = RowSubset.ALL
    """The subset of the batch that its rows belong to."""


# Shards of one call, in the order of their rows.
Shards = tuple[ShardRef, ...]


@dataclass(eq=False)
class LateShards:
    """Shards of a call's second part, which is sent after its result was passed on."""

    shards: Shards = ()
    """Empty until the second part is sent."""


@dataclass(frozen=True)
class ColumnSegment:
    """Result of one call, as consecutive rows of a batch."""

    early: Shards
    """Shards that existed when the segment was built."""
    late: LateShards | None = None
    """Shards that follow, if the call is sent in two parts."""
    repeat: int = 1
    """Rows of the batch for each row of the call, one after the other."""
    groups_before: int = 0
    """Groups of the batch before its first."""

    @property
    def shards(self) -> Shards:
        """All shards that were sent so far."""
        return self.early if self.late is None else (*self.early, *self.late.shards)

    def with_shards(self, shards: Shards) -> ColumnSegment:
        """Return the segment with these shards only."""
        return replace(self, early=shards, late=None)


@dataclass(frozen=True)
class ColumnLocation:
    """Location of a column."""

    segments: tuple[ColumnSegment, ...]
    """One after the other: several if batches were concatenated."""
    names: tuple[str, ...]
    """Name of the column in each segment's call."""


@dataclass(frozen=True)
class Batch:
    """Columns over the same rows, all by reference. `base` locates the rows, and so does every
    column."""

    base: tuple[ColumnSegment, ...]
    columns: Mapping[str, ColumnLocation]
    shape: BatchShape

    @property
    def column_names(self) -> frozenset[str]:
        """Names of the columns."""
        return frozenset(self.columns)

    @property
    def shards(self) -> Shards:
        """The shards that locate its rows."""
        return tuple(shard for segments in self.base for shard in segments.shards)

    def __or__(self, other: BatchValue, /) -> Batch:
        """Merge columns; on equal names the other batch's. The rows must be the same."""
        assert isinstance(other, Batch)
        return replace(self, columns={**self.columns, **other.columns})

    def select(self, *names: str) -> Batch:
        """Return the batch with these columns only. Columns that no call reads are missing."""
        kept = {name: self.columns[name] for name in names if name in self.columns}
        return replace(self, columns=kept)

    def rename(self, **names: str) -> Batch:
        """Return the batch with some columns renamed."""
        columns = {names.get(name, name): column for name, column in self.columns.items()}
        return replace(self, columns=columns)

    def broadcast(self, like: BatchValue, /) -> Batch:
        """Repeat the rows to match another batch that was generated from them."""
        assert isinstance(like, Batch)
        times = like.shape.rows_per_group // self.shape.rows_per_group
        columns = {
            name: ColumnLocation(
                tuple(
                    replace(segment, repeat=segment.repeat * times) for segment in column.segments
                ),
                column.names,
            )
            for name, column in self.columns.items()
        }
        return replace(like, columns=columns)

    def concat(self, other: BatchValue, /) -> Batch:
        """Append the rows of a batch with the same columns, and equally many rows per prompt."""
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
        """Restrict the shards to a subset of the rows."""
        return self._with(lambda shard: shard.subset is subset)

    def with_shard(self, kept: ShardRef) -> Batch:
        """Restrict the shards to a single one."""
        return self._with(lambda shard: shard is kept)

    def _with(self, keeps: Callable[[ShardRef], bool]) -> Batch:
        def restrict(segments: tuple[ColumnSegment, ...]) -> tuple[ColumnSegment, ...]:
            return tuple(
                segment.with_shards(tuple(filter(keeps, segment.shards))) for segment in segments
            )

        columns = {
            name: replace(column, segments=restrict(column.segments))
            for name, column in self.columns.items()
        }
        return replace(self, base=restrict(self.base), columns=columns)

    def nonempty_shards(self, field: str) -> list[ShardRef]:
        """Return the shards of a column that have rows."""
        return [
            shard
            for segments in self.columns[field].segments
            for shard in segments.shards
            if shard.rows
        ]

    def sources(self, fields: Sequence[str]) -> InputSources:
        """Return the locations of some columns; without columns, of the rows."""
        grouped: dict[tuple[ColumnSegment, ...], dict[str, tuple[str, ...]]] = {}
        # Unrepeated columns come first: the first source defines the rows.
        for field in sorted(fields, key=lambda name: self.columns[name].segments[0].repeat > 1):
            column = self.columns[field]
            grouped.setdefault(column.segments, {})[field] = column.names
        if not grouped:
            grouped[self.base] = {}
        return InputSources(
            tuple(
                tuple(
                    _SegmentIndex(
                        segment,
                        self.shape.rows_per_group,
                        {field: stored[number] for field, stored in names.items()},
                    )
                    for number, segment in enumerate(segments)
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
    """Build the batch that one call wrote.

    Args:
        names: of the columns.
        shards: in the order of their rows.
        shape: of the rows.
        late: shards that follow.
    """
    segments = (ColumnSegment(tuple(shards), late),)
    return Batch(segments, {name: ColumnLocation(segments, (name,)) for name in names}, shape)


def _shifted(groups: int, segments: Sequence[ColumnSegment]) -> list[ColumnSegment]:
    return [replace(segment, groups_before=segment.groups_before + groups) for segment in segments]


class _SegmentIndex:
    """Finds the shards of one call that have some rows."""

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
        """Return the shards that may have a row of the batch between these bounds."""
        begin, end = rows.start - self._rows_before, rows.stop - self._rows_before
        # Shards are in the order of rows: two binary searches bound the range.
        first = bisect_right(self._stops, max(0, begin) // self._repeat)
        last = bisect_left(self._starts, -(-max(0, end) // self._repeat))
        return self._shards[first:last]

    def first(self) -> Shards:
        """Return one shard, from which a worker without rows learns the columns' types."""
        return self._shards[:1]

    def describe(self, shards: Shards) -> Segment:
        """Describe some of the shards to a worker."""
        return Segment(len(shards), self._names, self._repeat, self._groups_before)


@dataclass(frozen=True)
class InputSources:
    """Locations of the columns that a call reads, over all shards."""

    sources: tuple[tuple[_SegmentIndex, ...], ...]

    def for_rows(self, rows: range) -> tuple[list[ColumnSource], list[Any]]:
        """Return the sources and Ray's references that a worker needs for some rows.

        Args:
            rows: bounds of the batch's rows.
        """
        sources: list[ColumnSource] = []
        references: list[Any] = []
        for source in self.sources:
            segments = []
            for segment in source:
                if shards := segment.for_rows(rows):
                    segments.append(segment.describe(shards))
                    references += [shard.reference for shard in shards]
            # At least one shard of every source: it tells the types of the columns.
            if not segments:
                shards = source[0].first()
                segments.append(source[0].describe(shards))
                references += [shard.reference for shard in shards]
            sources.append(ColumnSource(tuple(segments)))
        return sources, references
