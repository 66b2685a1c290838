"""What the driver sends to workers and what comes back.

Orders and reports travel as bytes made by the plain pickler, which Ray passes on as they are: its
own pickler takes ten times as long for an object of many small parts. References stay outside of
the bytes, where Ray can count them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.dataplane.partition import BatchShape, RowSubset, Slice


class Segment(NamedTuple):
    """Shards of one call: those that a worker can need."""

    num_shards: int
    names: Mapping[str, str]
    """What is read of them: from the batch's name of a column to its call's."""
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""
    groups_before: int = 0
    """Groups of the batch before the first of that call's."""


class ColumnSource(NamedTuple):
    """Where some columns of a batch are that the same calls wrote."""

    segments: tuple[Segment, ...]
    """One for each call whose rows are needed: several where batches were concatenated."""

    @property
    def num_shards(self) -> int:
        """Of all parts."""
        return sum(segment.num_shards for segment in self.segments)


class InputBatch(NamedTuple):
    """A batch that a call reads, as far as a worker needs it."""

    shape: BatchShape
    """All of its rows."""
    sources: tuple[ColumnSource, ...] = ()
    """Where the rows are that this worker needs, and the columns that the call reads."""


@dataclass(frozen=True)
class CallRequest:
    """One call, for a worker."""

    call: ModelCall
    step: int
    """The training step; from 1."""
    graph: GraphName
    """The graph that the call belongs to: each samples with seeds of its own."""
    incarnation: str
    """Ranks of another incarnation refuse it."""
    batches: tuple[InputBatch, ...]
    """Those that the call reads: its own, then those of auxiliary losses."""
    mini_batches: int = 1
    """Parts of each batch, where the call trains."""
    round: int = 0
    """The round of `flow.repeat`, from 0."""
    num_weight_changes: int = 0
    """Calls of the pass before it that change the weights of its role."""
    subset: RowSubset = RowSubset.ALL
    """The rows that it works on. Of a portion, ranks are sent all rows and share out what there is
    of them; a call that generates makes it, and leaves the rest."""
    batch_slice: Slice = Slice(0, 1)
    """Of the rows, a host's. A rank's follows from its place in the mesh."""

    @property
    def leaves_rows(self) -> bool:
        """Whether it leaves rows to another call to finish."""
        return self.subset is RowSubset.FINISHED and self.call.kind is CallKind.GENERATE

    def header(self) -> bytes:
        """What is the same for all workers of the call."""
        shapes = [(each.shape.num_groups, each.shape.rows_per_group) for each in self.batches]
        static = (
            *(
                pickle.dumps(self.call, pickle.HIGHEST_PROTOCOL),
                self.step,
                self.graph.value,
                self.incarnation,
            ),
            *(shapes, self.mini_batches, self.round, self.num_weight_changes, self.subset.value),
        )
        return pickle.dumps(static, pickle.HIGHEST_PROTOCOL)

    def to_message(
        self,
        shards: Sequence[Any],
        header: bytes | None = None,
        sources: Sequence[Sequence[ColumnSource]] | None = None,
    ) -> tuple[Any, ...]:
        """Arguments of a worker's `run`: bytes, and references to shards. Ray fetches them before
        the call begins: no call that runs waits for another.

        Args:
            shards: references to those of the sources, one source after the other.
            header: what `header` gave, if it was asked for.
            sources: the worker's, of each batch. None: those of the order.
        """
        if sources is None:
            sources = [batch.sources for batch in self.batches]
        own = [
            [[tuple(segment) for segment in source.segments] for source in each] for each in sources
        ]
        told = (own, (self.batch_slice.index, self.batch_slice.count))
        return (header or self.header(), pickle.dumps(told, pickle.HIGHEST_PROTOCOL), *shards)

    @staticmethod
    def from_message(header: bytes, own: bytes) -> CallRequest:
        """What the bytes of a message say."""
        (call, step, graph, incarnation, *rest) = pickle.loads(header)
        shapes, mini_batches, number, num_weight_changes, subset = rest
        told, batch_slice = pickle.loads(own)
        sources = (
            tuple(
                ColumnSource(tuple(Segment(*segment) for segment in segments)) for segments in each
            )
            for each in told
        )
        batches = tuple(
            InputBatch(BatchShape(*shape), each)
            for shape, each in zip(shapes, sources, strict=True)
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
            Slice(*batch_slice),
        )


@lru_cache(maxsize=256)
def _read_call(message: bytes) -> ModelCall:
    """A call is the same in every step, and is read once."""
    call = pickle.loads(message)
    assert isinstance(call, ModelCall)
    return call


def returned_columns(call: ModelCall) -> tuple[str, ...]:
    """Fields of a call's result in the order in which they are returned."""
    return tuple(sorted({*call.writes, *call.carries}))
