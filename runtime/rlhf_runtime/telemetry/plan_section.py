"""The plan in the report: its tables, and its expected times next to the measured ones. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

from rlhf_api.plan import CallPlan, GraphName, ModelHead, Plan, RolePlan
from rlhf_api.plan_memory import MemoryPlan
from rlhf_api.plan_text import describe_devices, describe_groups
from rlhf_api.spec.resources import Device
from rlhf_runtime.telemetry.metric_names import format_bytes, format_seconds
from rlhf_runtime.telemetry.records import Span, StepRecord


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of plain texts; the first column names the row."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll"><table><thead><tr>{cells}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def plan_tables(plan: Plan) -> str:
    """Calls, roles, memory and reasons of a plan."""
    calls = [[c.call, c.graph.value, c.kind.value, _devices(c)] for c in plan.calls]
    roles = [
        [
            role.role,
            _model(role),
            _use(role),
            f"{role.num_parameters:,}" if role.num_parameters else "–",
            role.precision.value if role.precision else "–",
            role.origin or "–",
        ]
        for role in plan.roles
    ]
    return (
        "<h3>Calls</h3>"
        + table(["Call", "Graph", "Kind", "Devices"], calls)
        + "<h3>Roles</h3>"
        + table(["Role", "Model", "Use", "Parameters", "Precision", "Weights of"], roles)
        + "".join(_memory(plan, memory) for memory in plan.memory)
        + _reasons(plan)
    )


def _model(role: RolePlan) -> str:
    match role.head:
        case ModelHead.LM:
            return "language model"
        case ModelHead.SCALAR:
            return "scalar model"
        case None:
            return "–"


def _use(role: RolePlan) -> str:
    uses = [("trained", role.is_trained), ("generates", role.generates)]
    return ", ".join(name for name, is_used in uses if is_used) or "read"


def _devices(call: CallPlan) -> str:
    if call.mesh is None:
        return call.off_rank_process
    mesh = call.mesh
    axes = [("data", mesh.data), ("tensor", mesh.tensor), ("pipeline", mesh.pipeline)]
    cut = " × ".join(f"{name} {size}" for name, size in axes if size > 1 or name == "data")
    groups = f" in groups {describe_groups(mesh)}" if mesh.tensor_stride > 1 else ""
    source = call.source_mesh
    # A call that copies weights may read them on other devices.
    is_elsewhere = source is not None and source.ranks != mesh.ranks
    origin = f"{describe_devices(source.ranks, source.pool)} to " if is_elsewhere and source else ""
    return f"{origin}{describe_devices(mesh.ranks, mesh.pool)}: {cut}{groups}"


def _memory(plan: Plan, memory: MemoryPlan) -> str:
    devices = "" if len(plan.memory) == 1 else f": {describe_devices(memory.ranks, memory.pool)}"
    capacity = max(memory.capacity_bytes, 1)
    rows = "".join(
        f'<li><span>{escape(str(peak.phase))}</span><span class="meter"><i class="b0" '
        f'style="width:{min(100.0, peak.bytes / capacity * 100):.1f}%"></i></span>'
        f"<b>{format_bytes(peak.bytes)}</b></li>"
        for peak in memory.peaks
    )
    total = format_bytes(memory.capacity_bytes)
    title = f"<h3>Memory of one device{escape(devices)}</h3>"
    return f'{title}<ul class="bars">{rows}</ul><p class="note">Planned peaks, of {total}.</p>'


def _reasons(plan: Plan) -> str:
    if not plan.reasons:
        return ""
    items = "".join(f"<li>{escape(reason)}</li>" for reason in plan.reasons)
    return f'<h3>Why</h3><ul class="reasons">{items}</ul>'


# Tolerated ratio of measured and expected time, or its inverse.
MAX_FACTOR = 1.5

STEP = "a step"
ROUGH = "On CPUs expected times are no more than orders of magnitude."

# A role, or "", and a primitive, by which a span names its call.
_Site = tuple[str, str]


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
