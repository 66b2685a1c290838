"""Times that the plan expected, beside those that were measured. Pure."""

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

TOLERATED = 1.5
"""A time that is so many times as long or as short as expected was estimated wrong."""
STEP = "a step"
ROUGH = "On CPUs expected times are no more than orders of magnitude."

_Site = tuple[str, str]
"""A role, or nobody, and the primitive: all that a span says of its call."""


@dataclass(frozen=True)
class TimePair:
    """What was expected and what was measured of calls of one name, or of a step."""

    name: str
    expected_seconds: float
    """Of all calls of this name in a step, or in one that has them where not every step does."""
    measured_seconds: float
    """Of the slowest process, in the median of steps."""

    @property
    def factor(self) -> float:
        """How many times as long as expected; infinite where no time was expected."""
        if not self.expected_seconds:
            return float("inf") if self.measured_seconds else 1.0
        return self.measured_seconds / self.expected_seconds

    @property
    def is_wrong(self) -> bool:
        """Whether the estimate was off by more than is tolerated."""
        return not 1 / TOLERATED <= self.factor <= TOLERATED


def time_pairs(
    plan: Plan, steps: Sequence[StepRecord], spans: Mapping[int, Sequence[Span]]
) -> tuple[TimePair, ...]:
    """The step, then its calls in the order of the plan; empty where nothing was expected or
    measured.

    Args:
        plan: of the run.
        steps: that ran under this plan.
        spans: of some of them, by number.
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
    """What was expected of a step, and where that was wrong, for a terminal; empty without pairs.

    Args:
        plan: of the run.
        pairs: of it.
    """
    if not pairs:
        return ""
    step, *calls = pairs
    lines = [_both(step)]
    wrong = [f"  {_both(call)}" for call in calls if call.is_wrong]
    if plan.device is Device.CPU:
        lines.append(ROUGH)
    if wrong:
        lines += [f"wrong by more than a factor of {TOLERATED}:", *wrong]
    return "\n".join(lines)


def _both(pair: TimePair) -> str:
    expected, measured = map(format_seconds, (pair.expected_seconds, pair.measured_seconds))
    return f"{pair.name}: expected {expected}, measured {measured} ({pair.factor:.2f} times)"


def _expected(plan: Plan) -> dict[_Site, float]:
    """Seconds of all calls of a name in a step. Those of a region that not every step runs count
    only where every call of the name is in one, as in a step that runs it: the median of steps does
    not have them otherwise."""
    assert plan.estimate is not None
    seconds = plan.estimate.seconds_by_call
    of_every_step: dict[_Site, float] = defaultdict(float)
    of_some_steps: dict[_Site, float] = defaultdict(float)
    for call in plan.calls:
        if call.graph is GraphName.STEP and call.call in seconds:
            found = of_every_step if call.expected_count >= 1 else of_some_steps
            runs = max(1.0, call.expected_count)
            found[call.role or "", call.method] += seconds[call.call] * runs
    sites = dict.fromkeys((call.role or "", call.method) for call in plan.calls)
    both = of_some_steps | of_every_step
    return {site: both[site] for site in sites if site in both}


def _measured(steps: Iterable[Sequence[Span]]) -> dict[_Site, float]:
    """The median over steps of the seconds of the process that takes longest."""
    of_steps: dict[_Site, list[float]] = defaultdict(list)
    for spans in steps:
        of_processes: dict[_Site, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for span in spans:
            of_processes[span.role, span.call][span.process] += span.seconds
        for site, seconds in of_processes.items():
            of_steps[site].append(max(seconds.values()))
    return {site: median(seconds) for site, seconds in of_steps.items()}


def _name(site: _Site) -> str:
    return ".".join(part for part in site if part)
