"""How long the calls and steps of a plan are expected to take, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from rlhf_api.plan import GraphName, Plan, Pool
    from rlhf_api.plan_estimate import ComparedSize, PoolPart
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.simulation.simulate import Simulation

STEPS_SHOWN = range(2)
"""Steps of a timeline: the second shows how it overlaps with the first."""


def call_times(plan: Plan) -> dict[tuple[GraphName, str], str]:
    """The time of one run of each call that has one; empty where there is no estimate."""
    from rlhf_api.plan import GraphName
    from rlhf_planner.timeline.rows import format_time

    if plan.estimate is None:
        return {}
    return {(GraphName.STEP, each.call): format_time(each.seconds) for each in plan.estimate.calls}


def print_times(graphs: Mapping[GraphName, Graph], plan: Plan, console: Console) -> None:
    """What a step takes, and a timeline of some; nothing where there is no estimate."""
    from rlhf_planner.timeline.text import text_timeline

    simulation = simulated(graphs, plan)
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
    """What interleaving training pipelines would save: a line for each pair of calls."""
    from rlhf_api.plan_text import format_bytes
    from rlhf_planner.timeline.rows import format_time

    found = plan.estimate.pipeline_fusions if plan.estimate is not None else ()
    return [
        f"Not done: {' and '.join(each.calls)} with their pipelines interleaved in opposite "
        f"directions (intra-stage fusion) would take {format_time(each.fused_seconds)} instead of "
        f"{format_time(each.serial_seconds)} a step, and at least "
        f"{format_time(each.bound_seconds)}; stages would stand still for "
        f"{each.bubble_share:.0%} of it instead of {each.serial_bubble_share:.0%}, with "
        f"{format_bytes(each.activation_bytes)} of activations. The runtime has no such schedule."
        for each in found
    ]


def alternatives_table(plan: Plan) -> Table:
    """What a step takes with this plan and with those of others' rules, what their fullest devices
    hold, and how many times as fast this plan is."""
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
    for each in plan.search.alternatives:
        if each.step_seconds is None:
            table.add_row(each.name, "does not fit", "", "")
        else:
            held = "" if each.fullest_bytes is None else format_bytes(each.fullest_bytes)
            speed_up = f"{each.step_seconds / own:.2f}x" if own else ""
            table.add_row(each.name, format_time(each.step_seconds), held, speed_up)
    return table


def sizes_table(plan: Plan) -> Table:
    """The numbers of devices that were compared: what a step takes there, and device-seconds."""
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
    """How many of how many devices; of several pools also which."""
    return ", ".join(
        f"{part.nodes} x {part.devices_per_node}{f' {part.name}' if is_named else ''}"
        for part in size.pools
    )


def _costs(size: ComparedSize) -> tuple[str, str]:
    """Seconds and device-seconds of a step, or what they are at least."""
    from rlhf_planner.timeline.rows import format_time

    seconds, least = size.step_seconds, ""
    if seconds is None:
        seconds, least = size.bound_seconds, "at least "
    if seconds is None:
        return "no plan fits", ""
    if seconds == 0:
        return "not searched", ""
    return f"{least}{format_time(seconds)}", f"{least}{seconds * size.num_devices:,.0f}"


def _devices(pools: Sequence[PoolPart | Pool]) -> list[tuple[str, int, int]]:
    return [(pool.name, pool.nodes, pool.devices_per_node) for pool in pools]


def simulated(graphs: Mapping[GraphName, Graph], plan: Plan) -> Simulation | None:
    """Some steps of a plan. None: how long its calls take is not known."""
    from rlhf_api.plan import GraphName
    from rlhf_planner.simulation.step_tasks import simulate_step

    if plan.estimate is None:
        return None
    seconds, late = plan.estimate.seconds_by_call, plan.estimate.late_seconds_by_call
    return simulate_step(graphs[GraphName.STEP], plan, seconds, late)


def times_text(plan: Plan) -> str:
    """What a step takes, and how far to believe it; of a plan with an estimate."""
    from rlhf_api.spec.resources import Device
    from rlhf_planner.timeline.rows import format_time

    found = plan.estimate
    assert found is not None
    devices = ", ".join(dict.fromkeys(found.hardware.values()))
    lengths = f"{found.prompt_tokens:,.6g} and responses of {found.response_tokens:,.6g}"
    said = (
        f"Expected: {format_time(found.step_seconds)} a step, {found.tokens_per_second:,.0f} "
        f"tokens/s, devices idle {found.idle_share:.0%} of the time. "
        f"{'Layers as measured on' if found.is_measured else 'Arithmetic from data sheets of'} "
        f"{devices}, for prompts of {lengths} tokens on average, without verifiers."
    )
    if plan.device is Device.CPU and not found.is_measured:
        return f"{said} On CPUs it is no more than an order of magnitude."
    return said
