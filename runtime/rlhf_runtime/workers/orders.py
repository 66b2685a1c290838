"""What the driver sends to workers and what comes back. Plain data that pickles.

Orders and reports travel as bytes made by the plain pickler: Ray's own takes ten times as long for
an object of many small parts. References stay outside of the bytes, where Ray can count them.
"""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan
from typing import Any

from rlhf_api.plan import GraphName
from rlhf_flow.calls import ModelCall
from rlhf_runtime.telemetry.records import Span

ColumnRef = Any
"""A Ray object reference to a `Column`; this module does not need Ray."""


@dataclass(frozen=True)
class Source:
    """Shards of columns whose rows are cut alike."""

    first_index: int
    """Position of the first shard's ShardIndex among an order's indexes; the others follow."""
    columns: Mapping[str, tuple[ColumnRef, ...]]
    """For each column one reference per shard."""

    @property
    def num_shards(self) -> int:
        """Shards of every column."""
        return len(next(iter(self.columns.values())))


@dataclass(frozen=True)
class Order:
    """One call, for all ranks of its group."""

    call: ModelCall
    step: int
    """The training step; from 1."""
    graph: GraphName
    """The graph that the call belongs to: each samples with seeds of its own."""
    incarnation: str
    """Workers of another incarnation refuse it."""
    sources: tuple[Source, ...] = ()
    """Where the columns are that the call reads; the first one's indexes describe the batch."""
    num_base_shards: int = 0
    """Indexes of the first source."""

    def __reduce__(self) -> tuple[Any, ...]:
        """The static part as bytes, and the references."""
        shape = [
            (source.first_index, [(name, len(refs)) for name, refs in source.columns.items()])
            for source in self.sources
        ]
        references = [
            reference
            for source in self.sources
            for refs in source.columns.values()
            for reference in refs
        ]
        static = (self.call, self.step, self.graph, self.incarnation, shape, self.num_base_shards)
        return _order, (pickle.dumps(static, pickle.HIGHEST_PROTOCOL), references)


@dataclass(frozen=True)
class Statistics:
    """Numbers for metrics, in a form that ranks can compute apart and the driver puts together."""

    means: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(weighted sum, sum of weights) by metric name."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest value by metric name."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Totals by metric name."""


@dataclass(frozen=True)
class CallReport:
    """How a call went on one rank; the only thing of a call that the driver reads."""

    call: str
    statistics: Statistics
    spans: tuple[Span, ...]
    memory_bytes: int
    """Resident memory of the process afterwards."""
    notices: tuple[str, ...] = ()
    """What a person should read."""

    def __reduce__(self) -> tuple[Any, ...]:
        """All of it as bytes."""
        parts = tuple(getattr(self, name) for name in self.__dataclass_fields__)
        return _report, (pickle.dumps(parts, pickle.HIGHEST_PROTOCOL),)


def _order(static: bytes, references: Sequence[ColumnRef]) -> Order:
    call, step, graph, incarnation, shape, num_base_shards = pickle.loads(static)
    remaining = iter(references)
    sources = tuple(
        Source(first, {name: tuple(islice(remaining, count)) for name, count in columns})
        for first, columns in shape
    )
    return Order(call, step, graph, incarnation, sources, num_base_shards)


def _report(parts: bytes) -> CallReport:
    return CallReport(*pickle.loads(parts))


def merge(reports: Sequence[Statistics]) -> dict[str, float]:
    """Metrics from the statistics of all ranks and calls of a step.

    A mean without weight is left out. A maximum over values with a NaN is NaN, whatever the order.
    """
    sums: dict[str, tuple[float, float]] = {}
    metrics: dict[str, float] = {}
    for statistics in reports:
        for name, (total, weight) in statistics.means.items():
            before = sums.get(name, (0.0, 0.0))
            sums[name] = (before[0] + total, before[1] + weight)
        for name, value in statistics.maxima.items():
            metrics[name] = value if isnan(value) else max(metrics.get(name, value), value)
        for name, value in statistics.sums.items():
            metrics[name] = metrics.get(name, 0.0) + value
    metrics.update({name: total / weight for name, (total, weight) in sums.items() if weight})
    return metrics


def returned_columns(call: ModelCall) -> tuple[str, ...]:
    """Fields of a call's result in the order in which they are returned."""
    return tuple(sorted({*call.writes, *call.carries}))
