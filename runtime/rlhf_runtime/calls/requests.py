"""Requests of the driver to workers: the call, its batches, and where their shards are."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.calls.ended_rows import ScoreCall
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset, Slice


class Segment(NamedTuple):
    """Shards of one call that a worker may need."""

    num_shards: int
    names: Mapping[str, str]
    """Column names: from the name in the batch to the name in the call that wrote it."""
    repeat: int = 1
    """Rows of the batch for each stored row, one after the other."""
    groups_before: int = 0
    """Groups of the batch before this segment's first group."""


class ColumnSource(NamedTuple):
    """Columns of a batch that were written by the same calls."""

    segments: tuple[Segment, ...]
    """One per call whose rows are needed: several where batches were concatenated."""

    @property
    def num_shards(self) -> int:
        """Shards in all segments."""
        return sum(segment.num_shards for segment in self.segments)


class InputBatch(NamedTuple):
    """A batch that a call reads, restricted to the shards that a worker needs."""

    shape: BatchShape
    """Shape of the complete batch."""
    sources: tuple[ColumnSource, ...] = ()
    """Locations of the needed rows and columns."""


@dataclass(frozen=True)
class CallRequest:
    """One call, for a worker."""

    call: ModelCall
    step: int
    """The training step, from 1."""
    graph: GraphName
    """The graph that the call belongs to. Its name is part of the sampling seeds."""
    incarnation: str
    """Ranks of another incarnation reject the request."""
    batches: tuple[InputBatch, ...]
    """The call's batch, then those of auxiliary losses."""
    mini_batches: int = 1
    """Mini-batches per batch, for calls that train."""
    round: int = 0
    """Round of `flow.repeat`, from 0."""
    num_weight_changes: int = 0
    """Earlier calls of this pass that change the weights of the call's role."""
    subset: RowSubset = RowSubset.ALL
    """Rows that the call works on. Of a partial subset, ranks are sent all rows and divide those
    that exist. A call that generates with `FINISHED` leaves the other rows unfinished."""
    reads_samples: bool = True
    """False: the responses of the call's rows, if any, are the data's, not sampled ones."""
    repetition: int = 0
    """Earlier passes of this graph and step: all evaluations of a warm start belong to step 0."""
    score_calls: tuple[ScoreCall, ...] = ()
    """Calls that score the responses of this one, and may begin while it generates."""
    batch_slice: Slice = Slice(0, 1)
    """A host's slice of the rows. A rank's slice follows from its coordinates in the mesh."""

    @property
    def leaves_rows(self) -> bool:
        """True if another call finishes some rows."""
        return self.subset is RowSubset.FINISHED and self.call.kind is CallKind.GENERATE

    def header(self) -> bytes:
        """Serialize the part that is the same for all workers of the call."""
        shapes = [(batch.shape.num_groups, batch.shape.rows_per_group) for batch in self.batches]
        # The plain pickler: for an object of many small parts Ray's own takes ten times as long,
        # and it passes bytes on as they are. References stay outside of the bytes, where Ray can
        # count them.
        static = (
            *(
                pickle.dumps(self.call, pickle.HIGHEST_PROTOCOL),
                self.step,
                self.graph.value,
                self.incarnation,
            ),
            *(shapes, self.mini_batches, self.round, self.num_weight_changes),
            *(self.subset.value, self.reads_samples, self.repetition),
            tuple(map(tuple, self.score_calls)),
        )
        return pickle.dumps(static, pickle.HIGHEST_PROTOCOL)

    def to_message(
        self,
        shards: Sequence[Any],
        header: bytes | None = None,
        sources: Sequence[Sequence[ColumnSource]] | None = None,
    ) -> tuple[Any, ...]:
        """Return the arguments of a worker's `run`: bytes, then references to shards.

        Args:
            shards: references to the shards of all sources, source after source.
            header: the result of `header`; None: computed here.
            sources: this worker's sources, per batch. None: those of the request.
        """
        if sources is None:
            sources = [batch.sources for batch in self.batches]
        own = [
            [[tuple(segment) for segment in source.segments] for source in batch_sources]
            for batch_sources in sources
        ]
        own_part = (own, (self.batch_slice.index, self.batch_slice.count))
        # Ray fetches the shards before the call begins: no running call waits for another.
        return (header or self.header(), pickle.dumps(own_part, pickle.HIGHEST_PROTOCOL), *shards)

    @staticmethod
    def from_message(header: bytes, own: bytes) -> CallRequest:
        """Deserialize; the inverse of `header` and `to_message`."""
        (call, step, graph, incarnation, *rest) = pickle.loads(header)
        shapes, mini_batches, number, num_weight_changes, *rest = rest
        subset, reads_samples, repetition, score_calls = rest
        sources_by_batch, batch_slice = pickle.loads(own)
        sources = (
            tuple(
                ColumnSource(tuple(Segment(*segment) for segment in segments))
                for segments in batch_sources
            )
            for batch_sources in sources_by_batch
        )
        batches = tuple(
            InputBatch(BatchShape(*shape), batch_sources)
            for shape, batch_sources in zip(shapes, sources, strict=True)
        )
        return CallRequest(
            _read_call(call),
            step,
            GraphName(graph),
            incarnation,
            batches,
            mini_batches,
            number,
            num_weight_changes,
            RowSubset(subset),
            reads_samples,
            repetition,
            tuple(ScoreCall(*call) for call in score_calls),
            Slice(*batch_slice),
        )


# A call is the same in every step: unpickle it once.
@lru_cache(maxsize=256)
def _read_call(message: bytes) -> ModelCall:
    call = pickle.loads(message)
    assert isinstance(call, ModelCall)
    return call


def returned_columns(call: ModelCall) -> tuple[str, ...]:
    """Return the columns of a call's result, in the order in which they are returned."""
    return tuple(sorted({*call.writes, *call.carries}))
