"""Inputs of a call on one rank: its own rows and their columns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

from rlhf_runtime.calls.requests import CallRequest, ColumnSource, InputBatch, Segment
from rlhf_runtime.dataplane.call_protocols import BALANCED, protocol_of
from rlhf_runtime.dataplane.columns import Column, Rows, repeat_rows
from rlhf_runtime.dataplane.partition import (
    RowSubset,
    balance_tokens,
    balancing_window,
    contiguous_rows,
)
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard, ShardIndex, merge_indices, plan_gather


class BatchColumns:
    """Columns of a batch, from the shards that a reader was sent.

    Args:
        batch: the locations of the columns.
        shards: of the batch's sources, source after source.
    """

    def __init__(self, batch: InputBatch, shards: Sequence[Shard]) -> None:
        self.shape = batch.shape
        remaining = iter(shards)
        self._sources = [self._in_batch(source, remaining) for source in batch.sources]

    @cached_property
    def index(self) -> ShardIndex:
        """All rows that were sent, in order: the reader's, and others of the same shards."""
        return merge_indices([shard.index for shard in self._sources[0]])

    def load(self, rows: Rows) -> dict[str, Column]:
        """Load every column at the requested rows.

        Raises:
            ValueError: a row was not sent.
        """
        return {
            name: column
            for shards in self._sources
            if shards[0].columns
            for name, column in _load(shards, rows).items()
        }

    def _in_batch(self, source: ColumnSource, shards: Iterator[Shard]) -> list[Shard]:
        return [
            _in_batch(next(shards), segment, self.shape.rows_per_group)
            for segment in source.segments
            for _ in range(segment.num_shards)
        ]


class BatchInputs(BatchColumns):
    """One batch that a call reads.

    Args:
        request: the call.
        batch: one of the request's batches.
        shards: of the batch's sources, source after source.
        at: the rank's coordinates in the call's mesh.
    """

    def __init__(
        self, request: CallRequest, batch: InputBatch, shards: Sequence[Shard], at: Coordinates
    ) -> None:
        super().__init__(batch, shards)
        self._call = request.call
        self._num_mini_batches = request.mini_batches
        # Ranks get all shards of a partial subset, and divide the rows that exist by tokens.
        self._is_partial = request.subset is not RowSubset.ALL and not request.leaves_rows
        self._slice = protocol_of(request.call).distribute(at)

    def rows(self) -> Rows:
        """Return this rank's rows by the call's protocol, in ascending order."""
        return self._own_rows(range(self.shape.num_groups))

    def mini_batches(self) -> list[Rows]:
        """Return this rank's rows of every mini-batch, in ascending order."""
        return [self._own_rows(g) for g in self.shape.mini_batches(self._num_mini_batches)]

    def _own_rows(self, groups: range) -> Rows:
        samples, keep_groups = self.shape.rows_per_group, self._call.compares_responses
        if self._is_partial:
            return balance_tokens(self.index, self._slice.count, keep_groups)[self._slice.index]
        # Other kinds get whole groups, equally many.
        if self._call.kind not in BALANCED:
            return contiguous_rows(groups, samples, self._slice).rows()
        # Only the window's shards were sent, so tokens are balanced within it.
        window = balancing_window(groups, samples, self._slice, keep_groups)
        entries = self.index.find(window.span.rows())
        return balance_tokens(entries, window.batch_slice.count, keep_groups)[
            window.batch_slice.index
        ]


class CallInputs(BatchInputs):
    """All inputs of a call: the rows of its batch, auxiliary batches and the request's numbers.

    Args:
        request: the call.
        shards: of the request's sources, source after source.
        at: the rank's coordinates in the call's mesh.
    """

    def __init__(self, request: CallRequest, shards: Sequence[Shard], at: Coordinates) -> None:
        counts = [sum(source.num_shards for source in batch.sources) for batch in request.batches]
        ends = list(accumulate(counts))
        shards_by_batch = [
            shards[end - count : end] for count, end in zip(counts, ends, strict=True)
        ]
        super().__init__(request, request.batches[0], shards_by_batch[0], at)
        self.call = request.call
        self.step = request.step
        self.graph = request.graph
        self.round = request.round
        self.repetition = request.repetition
        self.subset = request.subset
        self.score_calls = request.score_calls
        self.num_weight_changes = request.num_weight_changes
        self.leaves_rows = request.leaves_rows
        self.reads_samples = request.reads_samples
        self.at = at
        # Batches of auxiliary losses.
        self.auxiliary = [
            BatchInputs(request, batch, batch_shards, at)
            for batch, batch_shards in zip(request.batches[1:], shards_by_batch[1:], strict=True)
        ]


def _in_batch(shard: Shard, segment: Segment, rows_per_group: int) -> Shard:
    # The columns' names, repetition and row numbers in this batch.
    columns = {name: shard.columns[stored] for name, stored in segment.names.items()}
    if segment.repeat > 1:
        columns = {name: repeat_rows(column, segment.repeat) for name, column in columns.items()}
    index = shard.index.repeat(segment.repeat)
    return Shard(index.shifted(segment.groups_before, rows_per_group), columns)


def _load(shards: Sequence[Shard], rows: Rows) -> dict[str, Column]:
    location = plan_gather(rows, [shard.index.rows for shard in shards])
    columns_by_shard = [shards[number].columns for number in location.shards]
    return {
        name: location.gather([columns[name] for columns in columns_by_shard])
        for name in columns_by_shard[0]
    }
