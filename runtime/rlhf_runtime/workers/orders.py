"""What the driver sends to workers and what comes back.

Orders and reports travel as bytes made by the plain pickler, which Ray passes on as they are: its
own pickler takes ten times as long for an object of many small parts. References stay outside of
the bytes, where Ray can count them.
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
from rlhf_runtime.dataplane.shards import ShardIndex
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
    repeat: int = 1
    """How many rows of the batch have each of its rows' value, one after the other."""

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
    """Where the columns are that the call reads. Every source has the same rows, cut in its way."""

    def message(self, indexes: Sequence[Any]) -> tuple[Any, ...]:
        """Arguments of a worker's `run`: bytes, references to indexes, references to columns.

        Ray fetches the indexes before the call begins; columns, in a list, only when asked to.
        """
        shape = [
            (
                source.first_index,
                [(name, len(refs)) for name, refs in source.columns.items()],
                source.repeat,
            )
            for source in self.sources
        ]
        references = [
            reference
            for source in self.sources
            for refs in source.columns.values()
            for reference in refs
        ]
        static = (self.call, self.step, self.graph, self.incarnation, shape)
        header = pickle.dumps(static, pickle.HIGHEST_PROTOCOL)
        return (header, *indexes, references) if shape else (header, *indexes)

    @staticmethod
    def read(header: bytes, *objects: Any) -> tuple[Order, Sequence[ShardIndex]]:
        """What a worker's `run` was called with: the order and its indexes."""
        call, step, graph, incarnation, shape = pickle.loads(header)
        *messages, references = objects if shape else (*objects, [])
        indexes = [ShardIndex.read(message) for message in messages]
        remaining = iter(references)
        sources = tuple(
            Source(first, {name: tuple(islice(remaining, count)) for name, count in cut}, repeat)
            for first, cut, repeat in shape
        )
        return Order(call, step, graph, incarnation, sources), indexes


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
