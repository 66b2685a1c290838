"""What the driver sends to workers and what comes back.

Orders and reports travel as bytes made by the plain pickler, which Ray passes on as they are: its
own pickler takes ten times as long for an object of many small parts. References stay outside of
the bytes, where Ray can count them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import isnan
from typing import Any, NamedTuple

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_flow.step.calls import ModelCall
from rlhf_runtime.dataplane.partition import Extent, Portion, Share
from rlhf_runtime.rewards.failures import Failure
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.spread import Spread


class Part(NamedTuple):
    """Shards of one call: those that a worker can need."""

    num_shards: int
    names: Mapping[str, str]
    """What is read of them: from the batch's name of a column to its call's."""
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""
    groups_before: int = 0
    """Groups of the batch before the first of that call's."""


class Source(NamedTuple):
    """Where some columns of a batch are that the same calls wrote."""

    parts: tuple[Part, ...]
    """One for each call whose rows are needed: several where batches were concatenated."""

    @property
    def num_shards(self) -> int:
        """Of all parts."""
        return sum(part.num_shards for part in self.parts)


class OrderedBatch(NamedTuple):
    """A batch that a call reads, as far as a worker needs it."""

    extent: Extent
    """All of its rows."""
    sources: tuple[Source, ...] = ()
    """Where the rows are that this worker needs, and the columns that the call reads."""


@dataclass(frozen=True)
class Order:
    """One call, for a worker."""

    call: ModelCall
    step: int
    """The training step; from 1."""
    graph: GraphName
    """The graph that the call belongs to: each samples with seeds of its own."""
    incarnation: str
    """Ranks of another incarnation refuse it."""
    batches: tuple[OrderedBatch, ...]
    """Those that the call reads: its own, then those of auxiliary losses."""
    mini_batches: int = 1
    """Parts of each batch, where the call trains."""
    round: int = 0
    """The round of `flow.repeat`, from 0."""
    changes: int = 0
    """Calls of the pass before it that change the weights of its role."""
    portion: Portion = Portion.ALL
    """The rows that it works on. Of a portion, ranks are sent all rows and share out what there is
    of them; a call that generates makes it, and leaves the rest."""
    share: Share = Share(0, 1)
    """Of the rows, a host's. A rank's follows from its place in the mesh."""

    @property
    def leaves_rows(self) -> bool:
        """Whether it leaves rows to another call to finish."""
        return self.portion is Portion.ENDED and self.call.kind is CallKind.GENERATE

    def header(self) -> bytes:
        """What is the same for all workers of the call."""
        extents = [(each.extent.num_groups, each.extent.rows_per_group) for each in self.batches]
        static = (
            *(
                pickle.dumps(self.call, pickle.HIGHEST_PROTOCOL),
                self.step,
                self.graph.value,
                self.incarnation,
            ),
            *(extents, self.mini_batches, self.round, self.changes, self.portion.value),
        )
        return pickle.dumps(static, pickle.HIGHEST_PROTOCOL)

    def message(
        self,
        shards: Sequence[Any],
        header: bytes | None = None,
        sources: Sequence[Sequence[Source]] | None = None,
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
        own = [[[tuple(part) for part in source.parts] for source in each] for each in sources]
        told = (own, (self.share.number, self.share.count))
        return (header or self.header(), pickle.dumps(told, pickle.HIGHEST_PROTOCOL), *shards)

    @staticmethod
    def read(header: bytes, own: bytes) -> Order:
        """What the bytes of a message say."""
        (call, step, graph, incarnation, *rest) = pickle.loads(header)
        extents, mini_batches, number, changes, portion = rest
        told, share = pickle.loads(own)
        sources = (
            tuple(Source(tuple(Part(*part) for part in parts)) for parts in each) for each in told
        )
        batches = tuple(
            OrderedBatch(Extent(*extent), each)
            for extent, each in zip(extents, sources, strict=True)
        )
        return Order(
            _read_call(call),
            step,
            GraphName(graph),
            incarnation,
            batches,
            mini_batches,
            number,
            changes,
            Portion(portion),
            Share(*share),
        )


@lru_cache(maxsize=256)
def _read_call(message: bytes) -> ModelCall:
    """A call is the same in every step, and is read once."""
    call = pickle.loads(message)
    assert isinstance(call, ModelCall)
    return call


@dataclass(frozen=True)
class Statistics:
    """Numbers for metrics, in a form that ranks can compute apart and the driver puts together."""

    means: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(weighted sum, sum of weights) by metric name."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest value by metric name."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Totals by metric name."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Of what a metric is the standard deviation, by its name."""


@dataclass(frozen=True)
class Scored:
    """What became of the responses of one order to score."""

    round: int
    """Of `flow.repeat`, from 0."""
    num_samples: int
    num_valid: int
    """Those that count."""
    failures: Mapping[str, tuple[Failure, ...]]
    """The foremost of each reward that had some, by its name."""


@dataclass(frozen=True)
class CallReport:
    """How a call went on one worker: all of it that the driver reads, but for saved lines."""

    call: str
    statistics: Statistics
    spans: tuple[Span, ...]
    memory_bytes: int
    """Resident memory of the process afterwards."""
    scored: Scored | None = None
    """Of a call that scores."""

    def message(self) -> bytes:
        """What travels."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def read(message: bytes) -> CallReport:
        """What a worker sent."""
        report = pickle.loads(message)
        assert isinstance(report, CallReport)
        return report


def merge(reports: Sequence[Statistics]) -> dict[str, float]:
    """Metrics from the statistics of all ranks and calls of a step.

    A mean without weight is left out, and a spread of nothing. A maximum over values with a NaN is
    NaN, whatever the order.
    """
    sums: dict[str, tuple[float, float]] = {}
    spreads: dict[str, Spread] = {}
    metrics: dict[str, float] = {}
    for statistics in reports:
        for name, (total, weight) in statistics.means.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + weight)
        for name, value in statistics.maxima.items():
            metrics[name] = larger(metrics.get(name, value), value)
        for name, value in statistics.sums.items():
            metrics[name] = metrics.get(name, 0.0) + value
        for name, spread in statistics.spreads.items():
            spreads[name] = spreads[name].joined(spread) if name in spreads else spread
    metrics.update({name: total / weight for name, (total, weight) in sums.items() if weight})
    metrics.update({name: spread.deviation for name, spread in spreads.items() if spread.count})
    return metrics


def larger(one: float, other: float) -> float:
    """The larger of two numbers, and NaN where one of them is, whatever the order."""
    return one if isnan(one) or one > other else other


def returned_columns(call: ModelCall) -> tuple[str, ...]:
    """Fields of a call's result in the order in which they are returned."""
    return tuple(sorted({*call.writes, *call.carries}))
