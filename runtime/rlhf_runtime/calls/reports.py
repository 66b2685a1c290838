"""Reports from workers to the driver, and how metrics are merged from them. Pure."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isnan

from rlhf_runtime.rewards.scores import Failure
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.telemetry.spread import Spread


@dataclass(frozen=True)
class Statistics:
    """Numbers for metrics, in a form that can be merged over ranks and calls."""

    means: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """(weighted sum, sum of weights) by metric name."""
    maxima: Mapping[str, float] = field(default_factory=dict)
    """Largest value by metric name."""
    sums: Mapping[str, float] = field(default_factory=dict)
    """Totals by metric name."""
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """Moments by metric name; the metric is the standard deviation."""


@dataclass(frozen=True)
class ScoringReport:
    """Outcome of one scoring request."""

    round: int
    """Round of `flow.repeat`, from 0."""
    num_samples: int
    num_counted: int
    """Samples whose score counts: they have one, and rollout.onStop does not leave them out."""
    num_failed: Mapping[str, int]
    """Samples that a reward with onError: Exclude could not score, by its name; without those on
    which it abstained."""
    failures: Mapping[str, tuple[Failure, ...]]
    """First failures of every reward that had some, by its name."""
    notices: tuple[str, ...] = ()
    """Texts for users."""


@dataclass(frozen=True)
class EpisodeReport:
    """Outcome of the conversations of one rank."""

    num_episodes: int
    num_failed: int
    first_failure: str = ""
    """Description with the user's traceback; empty without a failure."""
    notices: tuple[str, ...] = ()
    """Texts for users."""


@dataclass(frozen=True)
class CallReport:
    """Report of one call from one worker: all that the driver reads, except for saved lines."""

    call: str
    statistics: Statistics
    spans: tuple[Span, ...]
    memory_bytes: int
    """Resident memory of the process after the call."""
    scoring: ScoringReport | None = None
    """Only of calls that score."""
    episodes: EpisodeReport | None = None
    """Only of calls that generate conversations."""

    def to_bytes(self) -> bytes:
        """Serialize for the way to the driver."""
        return pickle.dumps(self, pickle.HIGHEST_PROTOCOL)

    @staticmethod
    def from_bytes(message: bytes) -> CallReport:
        """Deserialize; the inverse of `to_bytes`."""
        report = pickle.loads(message)
        assert isinstance(report, CallReport)
        return report


def merge_statistics(reports: Sequence[Statistics]) -> dict[str, float]:
    """Merge the statistics of all ranks and calls of a step into metrics.

    Means without weight and empty spreads are left out. A maximum over values with a NaN is NaN, in
    any order.
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
    # Means and deviations are computed last: only sums of parts can be added.
    metrics.update({name: total / weight for name, (total, weight) in sums.items() if weight})
    metrics.update({name: spread.deviation for name, spread in spreads.items() if spread.count})
    return metrics


def larger(one: float, other: float) -> float:
    """Return the larger number; NaN if one is NaN, in any order."""
    return one if isnan(one) or one > other else other
