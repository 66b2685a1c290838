"""Expected times of a plan: as text, as tables, and as an HTML page with its timeline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlhf_api.plan import GraphName, Plan, Pool
    from rlhf_api.plan_estimate import ComparedSize, ConversationEstimate, PoolPart
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.simulation.simulate import Simulation

STYLE = (
    "body{font-family:sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}table{border-collapse:collapse}"
    "th,td{text-align:left;padding:.2rem 1rem .2rem 0}td+td{text-align:right}"
)
STEPS_SHOWN = range(2)
"""Steps of a timeline; the second shows its overlap with the first."""


def call_times(plan: Plan) -> dict[tuple[GraphName, str], str]:
    """Expected time of each call of the step; empty without an estimate."""
    from rlhf_api.plan import GraphName
    from rlhf_planner.timeline.rows import format_time

    if plan.estimate is None:
        return {}
    return {(GraphName.STEP, call.call): format_time(call.seconds) for call in plan.estimate.calls}


def print_times(graphs: Mapping[GraphName, Graph], plan: Plan, console: Console) -> None:
    """Print a step's expected time, a timeline and comparisons; nothing without an estimate."""
    from rlhf_planner.timeline.text import text_timeline

    simulation = simulate_plan(graphs, plan)
    if simulation is None:
        return
    lines = ["", times_text(plan), "", text_timeline(simulation, console.width, STEPS_SHOWN)]
    console.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    for line in pipeline_fusion_lines(plan):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    if plan.search is not None and plan.search.alternatives:
        console.print(alternatives_table(plan))
    if plan.search is not None and plan.search.sizes:
        console.print("")
        console.print(sizes_table(plan))


def pipeline_fusion_lines(plan: Plan) -> list[str]:
    """A line for each pair of training calls whose pipelines could be interleaved."""
    from rlhf_api.plan_text import format_bytes
    from rlhf_planner.timeline.rows import format_time

    fusions = plan.estimate.pipeline_fusions if plan.estimate is not None else ()
    return [
        f"Not done: {' and '.join(fusion.calls)} with their pipelines interleaved in opposite "
        f"directions (intra-stage fusion) would take {format_time(fusion.fused_seconds)} instead "
        f"of {format_time(fusion.serial_seconds)} a step, and at least "
        f"{format_time(fusion.bound_seconds)}; stages would be idle for "
        f"{fusion.bubble_share:.0%} of it instead of {fusion.serial_bubble_share:.0%}, with "
        f"{format_bytes(fusion.activation_bytes)} of activations. The runtime has no such schedule."
        for fusion in fusions
    ]


def alternatives_table(plan: Plan) -> Table:
    """Step time, fullest device and speed-up, compared with the plans of other strategies."""
    from rich.table import Table

    from rlhf_api.plan_text import format_bytes
    from rlhf_planner.timeline.rows import format_time

    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("Compared with")
    for column in ("a step", "fullest device", "speed-up"):
        table.add_column(column, justify="right")
    assert plan.estimate is not None and plan.search is not None
    own = plan.estimate.step_seconds
    table.add_row("this plan", format_time(own), format_bytes(plan.fullest.peak_bytes), "")
    unfused = plan.search.unfused_seconds
    if unfused is not None:
        speed_up = f"{unfused / own:.2f}x" if own else ""
        table.add_row("without a stage fusion", format_time(unfused), "", speed_up)
    for alternative in plan.search.alternatives:
        seconds = alternative.step_seconds
        if seconds is None:
            table.add_row(alternative.name, "does not fit", "", "")
        else:
            peak = alternative.fullest_bytes
            memory = "" if peak is None else format_bytes(peak)
            speed_up = f"{seconds / own:.2f}x" if own else ""
            table.add_row(alternative.name, format_time(seconds), memory, speed_up)
    return table


def sizes_table(plan: Plan) -> Table:
    """Step time and device-seconds for each number of devices that was compared."""
    from rich.table import Table

    table = Table(box=None, padding=(0, 3, 0, 0))
    table.add_column("On devices", justify="right")
    table.add_column("nodes")
    table.add_column("a step", justify="right")
    table.add_column("device-seconds", justify="right")
    table.add_column("")
    assert plan.search is not None
    sizes = plan.search.sizes
    has_several = len({part.name for size in sizes for part in size.pools}) > 1
    for size in sizes:
        mark = "this plan" if _devices(size.pools) == _devices(plan.pools) else ""
        table.add_row(str(size.num_devices), _nodes(size, has_several), *_costs(size), mark)
    return table


def _nodes(size: ComparedSize, is_named: bool) -> str:
    """Nodes and devices per node; with the pool's name if there are several."""
    return ", ".join(
        f"{part.nodes} x {part.devices_per_node}{f' {part.name}' if is_named else ''}"
        for part in size.pools
    )


def _costs(size: ComparedSize) -> tuple[str, str]:
    """Seconds and device-seconds of a step; lower bounds where no plan was made."""
    from rlhf_planner.timeline.rows import format_time

    seconds, prefix = size.step_seconds, ""
    if seconds is None:
        seconds, prefix = size.bound_seconds, "at least "
    if seconds is None:
        return "no plan fits", ""
    # The trivial bound of a size that was not searched.
    if seconds == 0:
        return "not searched", ""
    return f"{prefix}{format_time(seconds)}", f"{prefix}{seconds * size.num_devices:,.0f}"


def _devices(pools: Sequence[PoolPart | Pool]) -> list[tuple[str, int, int]]:
    return [(pool.name, pool.nodes, pool.devices_per_node) for pool in pools]


def simulate_plan(graphs: Mapping[GraphName, Graph], plan: Plan) -> Simulation | None:
    """Simulate some steps of a plan; None without an estimate."""
    from rlhf_api.plan import GraphName
    from rlhf_planner.simulation.step_tasks import simulate_step

    if plan.estimate is None:
        return None
    seconds, late = plan.estimate.seconds_by_call, plan.estimate.late_seconds_by_call
    return simulate_step(graphs[GraphName.STEP], plan, seconds, late)


def times_text(plan: Plan) -> str:
    """A step's expected time, and how reliable it is. Needs an estimate."""
    from rlhf_api.spec.resources import Device
    from rlhf_planner.timeline.rows import format_time

    estimate = plan.estimate
    assert estimate is not None
    devices = ", ".join(dict.fromkeys(estimate.hardware.values()))
    lengths = f"{estimate.prompt_tokens:,.6g} and responses of {estimate.response_tokens:,.6g}"
    text = (
        f"Expected: {format_time(estimate.step_seconds)} a step, {estimate.tokens_per_second:,.0f} "
        f"tokens/s, devices idle {estimate.idle_share:.0%} of the time. "
        f"{'Layers as measured on' if estimate.is_measured else 'Arithmetic from data sheets of'} "
        f"{devices}, for prompts of {lengths} tokens on average, without verifiers."
    )
    if estimate.conversations is not None:
        text += f" {_conversations_text(estimate.conversations, estimate.step_seconds)}"
    # CPUs have no data sheets that fit: their speed depends on caches and on other processes.
    if plan.device is Device.CPU and not estimate.is_measured:
        return f"{text} On CPUs it is no more than an order of magnitude."
    return text


def _conversations_text(conversations: ConversationEstimate, step_seconds: float) -> str:
    from rlhf_planner.timeline.rows import format_time

    turns = f"Conversations have {conversations.turns:.3g} turns on average"
    if not conversations.tool_seconds:
        return (
            f"{turns}; tools take no time, unless rollout.environment.expectedToolSeconds says so."
        )
    wait = conversations.wait_seconds
    share = wait / step_seconds if step_seconds else 0.0
    return (
        f"{turns}, and tools take {format_time(conversations.tool_seconds)} for a turn: engines "
        f"wait for them {format_time(wait)} of a step ({share:.0%})."
    )


def write_page(plans: Sequence[tuple[Mapping[GraphName, Graph], Plan]], file: Path) -> None:
    """Write plans with their timelines as a self-contained HTML page.

    Raises:
        typer.BadParameter: the file cannot be written.
    """
    title = escape(", ".join(plan.job for _, plan in plans))
    body = "".join(_plan_html(graphs, plan) for graphs, plan in plans)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><body>{body}</body></html>\n"
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"the page cannot be written: got {file} ({error.strerror}), allowed a file in an "
            "existing folder; name another one"
        ) from error


def _plan_html(graphs: Mapping[GraphName, Graph], plan: Plan) -> str:
    from rlhf_planner.timeline.rows import format_time
    from rlhf_planner.timeline.svg import svg_timeline

    simulation = simulate_plan(graphs, plan)
    if simulation is None or plan.estimate is None:
        return f"<h1>{escape(plan.job)}</h1><p>{escape(plan.reasons[-1])}</p>"
    rows = "".join(
        f"<tr><td>{escape(call.call)}</td><td>{format_time(call.seconds)}</td>"
        f"<td>{escape(call.bottleneck.replace('_', ' '))}</td></tr>"
        for call in plan.estimate.calls
    )
    notes = "".join(f"<p>{escape(line)}</p>" for line in pipeline_fusion_lines(plan))
    return (
        f"<h1>{escape(plan.job)}</h1><p>{escape(times_text(plan))}</p>"
        f"{svg_timeline(simulation, STEPS_SHOWN)}{notes}<table><tr><th>call</th><th>one run</th>"
        f"<th>mostly</th></tr>{rows}</table>"
    )
