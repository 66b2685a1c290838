"""The charts of a run's metrics, in order. Pure: records in, charts out."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rlhf_api.report import REWARD_MEAN
from rlhf_runtime.telemetry.charts import Columns, LineChart, Series
from rlhf_runtime.telemetry.metric_names import describe, parse_metric_name
from rlhf_runtime.telemetry.metric_table import METRICS, ROLE_METRICS, Format
from rlhf_runtime.telemetry.plots import OTHER, Point, colours
from rlhf_runtime.telemetry.records import RunRecords, StepRecord
from rlhf_runtime.telemetry.summary import EVALUATION_REWARD, EXACT_MATCH
from rlhf_runtime.telemetry.timeline_chart import process_order

# Drawn first, in this order, even if constant; `*` is any role.
FIRST = (
    "*/kl",
    "*/entropy",
    "response/length_mean",
    "*/loss",
    "*/gradient_norm",
    "*/log_prob_difference_mean",
    "*/log_prob_difference_max",
    "throughput/tokens_per_second",
    "time/step",
)

# Metrics whose axis always includes 0.
FLOOR_AT_ZERO = (
    "*/kl",
    "*/log_prob_difference_mean",
    "*/log_prob_difference_max",
    "*/gradient_norm",
    "throughput/tokens_per_second",
    "time/step",
)
# Maximum numbers of columns of a chart, and of its lines: one for each colour.
MAX_COLUMNS = 60
MAX_PROCESSES = 8
# Families of metrics with separate charts.
OWN_CHARTS = ("time/", "memory/")


@dataclass(frozen=True)
class Curves:
    """The line charts of a run."""

    large: list[LineChart]
    """Evaluation and reward."""
    small: list[LineChart]
    constant: dict[str, float]
    """Metrics with one value in all steps: listed, not drawn."""


def curves(records: RunRecords) -> Curves:
    """The charts of the metrics over training steps."""
    series = _step_series(records.steps)
    steps = _step_range(records)
    evaluations = _evaluation_charts(records, steps)
    large = [dataclasses.replace(chart, large=True) for chart in evaluations[:1]]
    if REWARD_MEAN in series:
        large.append(_chart(REWARD_MEAN, series.pop(REWARD_MEAN), steps, large=True))
    names = [name for pattern in FIRST for name in series if fnmatchcase(name, pattern)]
    others = [name for name in series if name not in names and not name.startswith(OWN_CHARTS)]
    order = [*METRICS, *ROLE_METRICS]
    others.sort(key=lambda name: (_position(name, order), name))
    constant = {name: series[name][0][1] for name in others if _is_constant(series[name])}
    drawn = names + [name for name in others if name not in constant]
    small = [_chart(name, series[name], steps) for name in drawn]
    return Curves(large, small + evaluations[1:], constant)


@dataclass(frozen=True)
class MetricPoints:
    """The values of a metric over steps."""

    points: list[Point]
    is_evaluation: bool


def metric_series(records: RunRecords) -> dict[str, MetricPoints]:
    """All metrics of evaluations and of training steps, in the order of their charts."""
    evaluations: dict[str, list[Point]] = {}
    for record in records.evaluations:
        for name, value in record.metrics.items():
            evaluations.setdefault(name, []).append((record.step, value))
    steps = _step_series(records.steps)
    order = [*METRICS, *ROLE_METRICS]
    own = sorted(steps, key=lambda name: (name != REWARD_MEAN, _position(name, order), name))
    return {
        **{name: MetricPoints(evaluations[name], True) for name in _in_order(evaluations)},
        **{name: MetricPoints(steps[name], False) for name in own},
    }


def metric_chart(name: str, lines: list[Series]) -> LineChart:
    """The chart of one metric with a line for each of several runs."""
    steps = [step for line in lines for step, _ in line.points]
    chart = _chart(name, [], (min(steps), max(steps)))
    return dataclasses.replace(chart, series=lines)


def warm_start_charts(records: RunRecords) -> list[LineChart]:
    """The charts of the supervised warm start, over its own steps."""
    series: dict[str, list[Point]] = {}
    for record in records.warm_start:
        for name, value in record.metrics.items():
            series.setdefault(name, []).append((record.step, value))
    if not series:
        return []
    steps = (records.warm_start[0].step, records.warm_start[-1].step)
    return [
        _chart(name, points, steps, dots=len(points) < len(records.warm_start))
        for name, points in series.items()
        if not _is_constant(points) or len(points) == 1
    ]


def phase_columns(records: RunRecords, phase_seconds: Mapping[str, float]) -> Columns | None:
    """Seconds per phase over steps, with the rest of each step as `other`."""
    steps = records.steps
    if not steps:
        return None
    rest = [max(0.0, step.seconds - math.fsum(step.phases.values())) for step in steps]
    total = math.fsum(step.seconds for step in steps)
    totals = dict(phase_seconds)
    # Less than half a percent would be an invisible layer.
    if math.fsum(rest) > 0.005 * total:
        totals[OTHER] = math.fsum(rest)
    count = min(MAX_COLUMNS, len(steps))
    # Ranges of nearly equal numbers of steps, none of them empty.
    bounds = [index * len(steps) // count for index in range(count + 1)]
    buckets = [range(bounds[index], bounds[index + 1]) for index in range(count)]

    def layer(value: Callable[[int], float]) -> list[float]:
        return [math.fsum(value(index) for index in part) / len(part) for part in buckets]

    layers = {name: layer(_phase_reader(steps, rest, name)) for name in totals}
    return Columns(
        title="Time per phase",
        layers=layers,
        ranges=[(steps[part[0]].step, steps[part[-1]].step) for part in buckets],
        colours=colours(totals),
        totals=totals,
        format=Format.SECONDS,
    )


def memory_chart(records: RunRecords) -> LineChart | None:
    """Resident memory of the processes with the largest peaks."""
    points: dict[str, list[Point]] = {}
    for record in records.steps:
        for process, size in record.memory.items():
            points.setdefault(process, []).append((record.step, float(size)))
    if not points:
        return None
    by_peak = sorted(points, key=lambda process: -max(size for _, size in points[process]))
    shown = sorted(by_peak[:MAX_PROCESSES], key=process_order)
    left_out = len(points) - len(shown)
    return LineChart(
        title="Memory per process",
        unit="resident",
        description=f"{left_out} processes with less memory are not drawn." if left_out else "",
        format=Format.BYTES,
        series=[
            Series(process, points[process], colour=index, smoothed=False)
            for index, process in enumerate(shown)
        ],
        steps=_step_range(records),
        floor=0.0,
        large=True,
    )


def _is_positive(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in FLOOR_AT_ZERO)


def _position(name: str, order: Sequence[str]) -> int:
    """Position of a metric in the table of metrics; unlisted ones come last."""
    plain = parse_metric_name(name).plain
    entry = plain if plain in METRICS else plain.partition("/")[2]
    return order.index(entry) if entry in order else len(order)


def _step_series(steps: Iterable[StepRecord]) -> dict[str, list[Point]]:
    """The points of every metric; time and throughput also come from the records themselves."""
    series: dict[str, list[Point]] = {}
    for record in steps:
        for name, value in record.metrics.items():
            series.setdefault(name, []).append((record.step, value))
        if "time/step" not in record.metrics:
            series.setdefault("time/step", []).append((record.step, record.seconds))
        if "throughput/tokens_per_second" not in record.metrics and record.seconds > 0:
            speed = record.tokens / record.seconds
            series.setdefault("throughput/tokens_per_second", []).append((record.step, speed))
    return series


def _evaluation_charts(records: RunRecords, steps: tuple[int, int]) -> list[LineChart]:
    shown = _in_order({name for record in records.evaluations for name in record.metrics})
    charts = []
    for name in shown:
        points = [(r.step, r.metrics[name]) for r in records.evaluations if name in r.metrics]
        # A constant curve shows nothing, unless it is the main or the only one.
        if name != EXACT_MATCH and len(shown) > 1 and _is_constant(points):
            continue
        charts.append(_chart(name, points, steps, dots=True))
    return charts


def _in_order(evaluations: Iterable[str]) -> list[str]:
    """The metrics of evaluations, the main ones first."""
    names, first = set(evaluations), [EXACT_MATCH, EVALUATION_REWARD]
    return [name for name in first if name in names] + sorted(names - set(first))


def _chart(
    name: str,
    points: list[Point],
    steps: tuple[int, int],
    dots: bool = False,
    large: bool = False,
) -> LineChart:
    metric = describe(name)
    return LineChart(
        title=metric.title,
        # Fractions have no unit, and formatted seconds include theirs.
        unit="" if metric.unit in ("fraction", "s") else metric.unit,
        description=metric.description,
        format=metric.format,
        series=[Series(name, points, colour=0 if not dots else 2, dots=dots)],
        steps=steps,
        floor=0.0 if _is_positive(name) or metric.format is Format.COUNT else None,
        large=large,
    )


def _step_range(records: RunRecords) -> tuple[int, int]:
    """First and last step with a record; step 0 is the evaluation before training."""
    steps = [record.step for record in records.steps]
    steps += [record.step for record in records.evaluations]
    return (min(steps), max(steps)) if steps else (0, 1)


def _is_constant(points: list[Point]) -> bool:
    # A metric that is never a number is drawn, so that readers notice its gaps.
    first = points[0][1]
    return math.isfinite(first) and all(value == first for _, value in points)


def _phase_reader(
    steps: tuple[StepRecord, ...], rest: list[float], name: str
) -> Callable[[int], float]:
    # A phase of the run may also have the name `other`.
    if name == OTHER and all(OTHER not in step.phases for step in steps):
        return lambda index: rest[index]
    return lambda index: steps[index].phases.get(name, 0.0)
