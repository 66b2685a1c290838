"""A plan as tables, as json or yaml, or as a picture of its graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from rlhf_api.mesh import Mesh
    from rlhf_api.plan import CallPlan, GenerationPlan, GraphName, Plan
    from rlhf_api.plan_memory import MemoryPlan
    from rlhf_flow.trace.graph import Graph

CUT = ("dp", "tp", "pp")
"""Columns of a mesh: data-parallel replicas, tensor-parallel ranks, pipeline stages."""


def render(graphs: Mapping[GraphName, Graph], plan: Plan, output: str) -> str:
    """A plan, or its graphs, as text. The same plan gives the same bytes.

    Args:
        output: json, yaml, graph (a text picture) or mermaid.
    """
    if output == "json":
        return plan.model_dump_json(by_alias=True, indent=2) + "\n"
    if output == "yaml":
        from rlhf_api.yaml_dump import dump_yaml

        return dump_yaml(plan.model_dump(mode="json", by_alias=True))
    from rlhf_flow.trace.picture import draw_mermaid, draw_text

    draw = draw_mermaid if output == "mermaid" else draw_text
    title = "%% " if output == "mermaid" else ""
    pictures = [f"{title}{plan.job}: {name.value}\n{draw(graph)}" for name, graph in graphs.items()]
    return "\n\n".join(pictures) + "\n"


def plural(number: int, noun: str) -> str:
    """A number and its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_tables(plan: Plan, console: Console) -> None:
    """Print roles, calls, memory and reasons."""
    pools = [
        f"{pool.nodes} x {pool.devices_per_node} {pool.device.value} (pool {pool.name})"
        for pool in plan.pools
    ]
    engines = [_engines_text(generation) for generation in plan.generations]
    console.print(f"[bold]{plan.job}[/bold]: {', '.join([*pools, *engines])}", highlight=False)
    console.print(roles_table(plan))
    console.print(calls_table(plan))
    for memory in plan.memory:
        where = _group_text(memory) if len(plan.memory) > 1 else ""
        console.print(memory_table(memory, where))
        console.print(peaks_table(memory, where))
    for reason in plan.reasons:
        console.print(f"- {reason}", highlight=False, markup=False)


def roles_table(plan: Plan) -> Table:
    """A line for each role with a model: engine, devices, mesh and settings."""
    computing = ("precision", "activations", "micro-batch tokens")
    names = ("role", "engine", "devices", *CUT, "parameters", *computing)
    table = _table("Roles", names, right=(*CUT, "parameters", "micro-batch tokens"))
    for role in plan.roles:
        if role.mesh is None or role.engine is None or role.precision is None:
            continue
        table.add_row(
            role.role,
            role.engine.value,
            *_mesh_cells(role.mesh, plan),
            f"{role.num_parameters:,}",
            role.precision.value,
            ("recomputed" if role.recomputes else "kept") if role.is_trained else "",
            str(role.micro_batch_tokens),
        )
    return table


def _engines_text(generation: GenerationPlan) -> str:
    """Number and size of generation engines; with their groups where several are possible."""
    from rlhf_api.plan_text import describe_groups

    mesh = generation.mesh
    number, ranks = plural(mesh.data, "generation engine"), plural(mesh.tensor, "rank")
    which = f" {describe_groups(mesh)}" if mesh.tensor > 1 and mesh.data > 1 else ""
    return f"{number} of {ranks}{which} for {generation.role}"


def calls_table(plan: Plan) -> Table:
    """A line for each call: kind, devices, mesh, expected time, and columns."""
    from rlhf_cli.plan_times import call_times

    times = call_times(plan)
    expected = ("expected",) if times else ()
    names = ("graph", "call", "kind", "devices", *CUT, *expected, "reads -> writes")
    table = _table("Calls", names, (*CUT, *expected))
    for call in plan.calls:
        time = [times.get((call.graph, call.call), "")] if times else []
        cells = _call_cells(call, plan)
        table.add_row(call.graph.value, call.call, call.kind.value, *cells, *time, _fields(call))
    return table


def _call_cells(call: CallPlan, plan: Plan) -> tuple[str, str, str, str]:
    """Devices and mesh of a call; for a transition between devices also its source."""
    if call.mesh is None:
        return (call.off_rank_process, "", "", "")
    where, *cut = _mesh_cells(call.mesh, plan)
    source = call.source_mesh
    if source is not None and source.ranks != call.mesh.ranks:
        where = f"{_devices_text(source.ranks, source.pool, plan)} to {where}"
    data, tensor, pipeline = cut
    return (where, data, tensor, pipeline)


def _table(title: str, names: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in names:
        justify: JustifyMethod = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold")
    return table


def memory_table(memory: MemoryPlan, where: str = "") -> Table:
    """A line for each use of memory, with the phases in which it is allocated."""
    from rlhf_api.plan_text import describe_item, format_bytes

    table = Table(title=f"Memory of {where or 'each device'}", title_justify="left")
    table.add_column("use")
    table.add_column("size", justify="right")
    table.add_column("when", overflow="fold")
    for item in memory.items:
        always = set(item.phases) == set(memory.phases)
        when = "always" if always else ", ".join(map(str, item.phases))
        table.add_row(describe_item(item), format_bytes(item.bytes), when)
    return table


def peaks_table(memory: MemoryPlan, where: str = "") -> Table:
    """A line for each phase: allocated bytes and a device's capacity."""
    from rlhf_api.plan_text import format_bytes

    table = Table(title=f"Sum in each phase{where and f' on {where}'}", title_justify="left")
    table.add_column("phase")
    for name in ("sum", "device", "used"):
        table.add_column(name, justify="right")
    capacity = memory.capacity_bytes
    for peak in memory.peaks:
        row = (format_bytes(peak.bytes), format_bytes(capacity), f"{peak.bytes / capacity:.0%}")
        is_fullest = peak.phase == memory.peak_phase
        table.add_row(str(peak.phase), *row, style="bold" if is_fullest else None)
    return table


def _mesh_cells(mesh: Mesh, plan: Plan) -> tuple[str, str, str, str]:
    """Devices and mesh sizes, in the order of CUT."""
    where = _devices_text(mesh.ranks, mesh.pool, plan)
    return (where, str(mesh.data), str(mesh.tensor), str(mesh.pipeline))


def _group_text(memory: MemoryPlan) -> str:
    from rlhf_api.plan_text import describe_devices

    return describe_devices(memory.ranks, memory.pool)


def _devices_text(ranks: range, pool: str, plan: Plan) -> str:
    """Devices in short form: `0-3`; with several pools `critics 0-3`."""
    shown = f"{ranks.start}-{ranks.stop - 1}" if len(ranks) > 1 else str(ranks.start)
    return shown if len(plan.pools) == 1 else f"{pool} {shown}"


def _fields(call: CallPlan) -> str:
    return f"{', '.join(call.reads)} -> {', '.join(call.writes) or call.effect}".strip()
