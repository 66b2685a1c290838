"""Several runs side by side: settings that differ, results, curves. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_runtime.telemetry.charts import LineChart, Series
from rlhf_runtime.telemetry.curves import metric_chart, metric_series
from rlhf_runtime.telemetry.metric_names import (
    describe,
    format_bytes,
    format_seconds,
    format_value,
)
from rlhf_runtime.telemetry.plots import NUM_COLOURS
from rlhf_runtime.telemetry.records import RunRecords
from rlhf_runtime.telemetry.summary import Change, Summary
from rlhf_runtime.telemetry.tracked_run import Setting

MAX_RUNS = NUM_COLOURS
"""A colour for each."""
MISSING = "–"
"""Value of a run that has none."""


@dataclass(frozen=True)
class ComparedRun:
    """One of the runs."""

    name: str
    summary: Summary
    records: RunRecords
    settings: Mapping[str, Setting] | None
    """The manifest's settings by dotted names. None: it cannot be read by this release."""


@dataclass(frozen=True)
class Row:
    """A line of a table: its name, and a value for each run."""

    name: str
    values: tuple[str, ...]


def different_settings(runs: Sequence[ComparedRun]) -> list[Row]:
    """Return the settings that are not the same in all runs whose manifests can be read."""
    readable = [run.settings for run in runs if run.settings is not None]
    names = list(dict.fromkeys(name for settings in readable for name in settings))
    return [
        Row(name, tuple(_setting(run, name) for run in runs))
        for name in names
        if len({settings.get(name) for settings in readable}) > 1
    ]


def results(runs: Sequence[ComparedRun]) -> list[Row]:
    """Return outcome, scores, times and memory; rows that no run has are left out."""
    rows = [Row(name, tuple(read(run.summary) for run in runs)) for name, read in _RESULTS.items()]
    return [row for row in rows if set(row.values) != {MISSING}]


def compared_charts(runs: Sequence[ComparedRun]) -> list[LineChart]:
    """Return the charts of all metrics that two of the runs have, those of evaluations first."""
    of_runs = [metric_series(run.records) for run in runs]
    names = list(dict.fromkeys(name for series in of_runs for name in series))
    charts = []
    for name in names:
        lines = [
            Series(run.name, series[name].points, colour, series[name].is_evaluation)
            for colour, (run, series) in enumerate(zip(runs, of_runs, strict=True))
            if name in series
        ]
        if len(lines) > 1:
            charts.append(metric_chart(name, lines))
    return charts


def _setting(run: ComparedRun, name: str) -> str:
    if run.settings is None:
        return "?"
    value = run.settings.get(name)
    return MISSING if value is None else str(value)


def _change(read: Callable[[Summary], Change | None]) -> Callable[[Summary], str]:
    def text(summary: Summary) -> str:
        change = read(summary)
        if change is None:
            return MISSING
        style = describe(change.metric).format
        first, last, best = (
            format_value(value, style) for value in (change.first, change.last, change.best)
        )
        return f"{first} → {last} (best {best}, step {change.best_step:,})"

    return text


def _optional(value: float | None, write: Callable[[float], str]) -> str:
    return MISSING if value is None else write(value)


def _outcome(summary: Summary) -> str:
    return " ".join(filter(None, (summary.outcome.value, summary.reason)))


def _model_step(summary: Summary) -> str:
    return _optional(summary.model_step, lambda step: f"{int(step):,}")


def _peak(summary: Summary) -> str:
    return _optional(max(summary.peak_memory.values(), default=None), format_bytes)


# What the table of results says of a run.
_RESULTS: Mapping[str, Callable[[Summary], str]] = {
    "outcome": _outcome,
    "steps": lambda summary: f"{summary.steps:,} of {summary.total_steps:,}",
    "step of the model": _model_step,
    "exact match, held out": _change(lambda summary: summary.exact_match),
    "reward, held out": _change(lambda summary: summary.evaluation_reward),
    "reward": _change(lambda summary: summary.reward),
    "total time": lambda summary: _optional(summary.total_seconds, format_seconds),
    "training": lambda summary: format_seconds(summary.training_seconds),
    "step, median": lambda summary: _optional(summary.step_seconds_median, format_seconds),
    "tokens/s": lambda summary: _optional(summary.tokens_per_second, lambda rate: f"{rate:,.0f}"),
    "largest process": _peak,
    "starts, restarts": lambda summary: f"{summary.starts}, {summary.restarts}",
}


def names_of(folders: Sequence[Path]) -> list[str]:
    """Return a name for each run: as many last parts of its folder as tell all runs apart."""
    parts = [folder.absolute().parts for folder in folders]
    for count in range(1, max(map(len, parts)) + 1):
        names = [str(Path(*part[-count:])) for part in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]  # one folder twice
