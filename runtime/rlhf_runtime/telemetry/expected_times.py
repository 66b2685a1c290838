"""Compares the times of the plan with the measured ones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.resources import Device
from rlhf_runtime.telemetry.metric_names import format_seconds
from rlhf_runtime.telemetry.plan_table import table
from rlhf_runtime.telemetry.records import Span, StepRecord

MAX_FACTOR = 1.5
"""Tolerated ratio of measured and expected time, or its inverse."""
STEP = "a step"
ROUGH = "On CPUs expected times are no more than orders of magnitude."

_Site = tuple[str, str]
"""A role, or "", and a primitive, by which a span names its call."""


@dataclass(frozen=True)
class TimePair:
    """Expected and measured time of a step, or of the calls of one name."""

    name: str
    expected_seconds: float
    """Sum of the calls of this name in a step that has them."""
    measured_seconds: float
    """Time of the slowest process, median over steps."""

    @property
    def factor(self) -> float:
        """Measured / expected; infinite if no time was expected."""
        if not self.expected_seconds:
            return float("inf") if self.measured_seconds else 1.0
        return self.measured_seconds / self.expected_seconds

    @property
    def is_wrong(self) -> bool:
        """True if the estimate was off by more than MAX_FACTOR."""
        return not 1 / MAX_FACTOR <= self.factor <= MAX_FACTOR


def time_pairs(
    plan: Plan, steps: Sequence[StepRecord], spans: Mapping[int, Sequence[Span]]
) -> tuple[TimePair, ...]:
    """The step, then its calls in the order of the plan; empty without an estimate or measurement.

    Args:
        plan: of the run.
        steps: of this plan.
        spans: of some steps, by number.
    """
    if plan.estimate is None or not steps:
        return ()
    step_seconds = median(step.seconds for step in steps)
    measured = _measured(spans.values())
    pairs = [
        TimePair(_name(site), seconds, measured[site])
        for site, seconds in _expected(plan).items()
        if site in measured
    ]
    return (TimePair(STEP, plan.estimate.step_seconds, step_seconds), *pairs)


def times_table(plan: Plan, pairs: Sequence[TimePair]) -> str:
    """A table for the report; empty without pairs."""
    if not pairs:
        return ""
    rows = [
        [
            pair.name,
            format_seconds(pair.expected_seconds),
            format_seconds(pair.measured_seconds),
            f"{pair.factor:.2f}×" + (" – wrong" if pair.is_wrong else ""),
        ]
        for pair in pairs
    ]
    note = f'<p class="note">{ROUGH}</p>' if plan.device is Device.CPU else ""
    return note + table(["", "Expected", "Measured", "Measured / expected"], rows)


def times_text(plan: Plan, pairs: Sequence[TimePair]) -> str:
    """Expected and measured step time, and wrong estimates, for a terminal; empty without pairs."""
    if not pairs:
        return ""
    step, *calls = pairs
    lines = [_line(step)]
    wrong = [f"  {_line(call)}" for call in calls if call.is_wrong]
    if plan.device is Device.CPU:
        lines.append(ROUGH)
    if wrong:
        lines += [f"wrong by more than a factor of {MAX_FACTOR}:", *wrong]
    return "\n".join(lines)


def _line(pair: TimePair) -> str:
    expected, measured = map(format_seconds, (pair.expected_seconds, pair.measured_seconds))
    return f"{pair.name}: expected {expected}, measured {measured} ({pair.factor:.2f} times)"


def _expected(plan: Plan) -> dict[_Site, float]:
    """Expected seconds of the calls of a name in a step."""
    # Calls that only some steps run are not in the median step. They count only if all calls of the
    # name are such calls; then the expected time is that of a step that runs them.
    assert plan.estimate is not None
    seconds = plan.estimate.seconds_by_call
    in_every_step: dict[_Site, float] = defaultdict(float)
    in_some_steps: dict[_Site, float] = defaultdict(float)
    for call in plan.calls:
        if call.graph is GraphName.STEP and call.call in seconds:
            target = in_every_step if call.expected_count >= 1 else in_some_steps
            runs = max(1.0, call.expected_count)
            target[call.role or "", call.method] += seconds[call.call] * runs
    sites = dict.fromkeys((call.role or "", call.method) for call in plan.calls)
    both = in_some_steps | in_every_step
    return {site: both[site] for site in sites if site in both}


def _measured(steps: Iterable[Sequence[Span]]) -> dict[_Site, float]:
    """Seconds of the slowest process, median over steps."""
    by_site: dict[_Site, list[float]] = defaultdict(list)
    for spans in steps:
        by_process: dict[_Site, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for span in spans:
            by_process[span.role, span.call][span.process] += span.seconds
        for site, seconds in by_process.items():
            by_site[site].append(max(seconds.values()))
    return {site: median(seconds) for site, seconds in by_site.items()}


def _name(site: _Site) -> str:
    return ".".join(part for part in site if part)
