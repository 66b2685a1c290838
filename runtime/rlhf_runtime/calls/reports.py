"""Reports from workers to the driver, and how metrics are merged from them. Pure."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from rlhf_runtime.rewards.failures import Failure
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.spread import Spread


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
class ScoringReport:
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
    scoring: ScoringReport | None = None
    """Of a call that scores."""

    def to_bytes(self) -> bytes:
        """What travels."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def from_bytes(message: bytes) -> CallReport:
        """What a worker sent."""
        report = pickle.loads(message)
        assert isinstance(report, CallReport)
        return report


def merge_statistics(reports: Sequence[Statistics]) -> dict[str, float]:
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
