"""`rlhf plan`: what a job would run where, its memory, and why; or its graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from rich.console import JustifyMethod

    from rlhf_api.plan import CallPlan, GenerationPlan, GraphName, Mesh, Plan
    from rlhf_api.plan_memory import MemoryPlan
    from rlhf_api.spec.job import RLHFJob
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.problem.profile import Profile

PIPE_WIDTH = 140
"""Columns of a table that goes to a file or a pipe."""
CUT = ("dp", "tp", "pp")
"""How ranks are cut: data parallel replicas, tensor ranks, pipeline stages."""


def plan_command(
    file: Path,
    devices: int | None,
    output: str,
    overrides: Sequence[str] = (),
    html: Path | None = None,
    prove: bool = False,
    profile: Path | None = None,
    explain: str | None = None,
    diff: Path | None = None,
) -> None:
    """Print the plan of every job of a file, and on stderr what is odd about it.

    Args:
        file: the manifest; `-` is standard input.
        devices: CPU ranks of this machine, not the manifest's node pools.
        output: table, json, yaml, graph (a text picture) or mermaid.
        overrides: PATH=VALUE texts of --set.
        html: a file for a page with the timelines of all jobs.
        prove: whether to search until no faster plan is possible.
        profile: a file that `rlhf profile` has written on such devices.
        explain: the site of a call of the step, about which more is said.
        diff: a file with another plan, to compare with.

    Raises:
        ManifestError: the file has problems.
        FlowError: a custom algorithm that cannot be traced.
        PlanError: a job that cannot be planned; the message shows the arithmetic.
        UserCodeFailed: a protocol of its own that does not cover the rows.
        ProfileUnusable: no profile, or one of other devices or models.
    """
    from rlhf_cli.plan_diff import print_diff, read_plan
    from rlhf_cli.plan_explain import print_explanation
    from rlhf_cli.plan_page import write_page
    from rlhf_planner.problem.profile import read_profile

    other = None if diff is None else read_plan(diff)
    measured = None if profile is None else read_profile(profile)
    shown: list[tuple[Mapping[GraphName, Graph], Plan]] = []
    for job, graphs, plan in _planned_jobs(file, devices, overrides, prove, measured):
        if output == "table":
            console = _console()
            _print_plan(graphs, plan, console)
            if explain is not None:
                print_explanation(job, graphs, plan, explain, measured, console)
            if other is not None:
                print_diff(plan, other, console)
        else:
            separator = "---\n" if shown and output in ("json", "yaml") else ""
            sys.stdout.write(separator + render(graphs, plan, output))
        shown.append((graphs, plan))
    if html is not None:
        write_page(shown, html)


def _planned_jobs(
    file: Path,
    devices: int | None,
    overrides: Sequence[str],
    prove: bool,
    measured: Profile | None,
) -> Iterator[tuple[RLHFJob, Mapping[GraphName, Graph], Plan]]:
    """Every job of a file with its graphs and plan; what is odd about it is told on stderr."""
    from rlhf_cli.local_jobs import local_jobs
    from rlhf_cli.planned import planned
    from rlhf_cli.user_code import user_code
    from rlhf_cli.validate import lines_of
    from rlhf_flow.jobs.lint import lint_job
    from rlhf_planner.plan import pools_of

    for job in local_jobs(file, overrides):
        with lines_of(file, job, overrides), user_code(job):
            graphs, plan = planned(job, pools_of(job, devices), prove, measured)
        for warning in lint_job(job, graphs, plan.device):
            typer.echo(f"warning: {warning}", err=True)
        yield job, graphs, plan


def _print_plan(graphs: Mapping[GraphName, Graph], plan: Plan, console: Console) -> None:
    """Tables, expected times and a timeline."""
    from rlhf_cli.expected_times import print_times

    print_tables(plan, console)
    print_times(graphs, plan, console)


def render(graphs: Mapping[GraphName, Graph], plan: Plan, output: str) -> str:
    """A plan, or its graphs, as text that ends with a line break.

    The same plan gives the same bytes.
    """
    if output == "json":
        return plan.model_dump_json(by_alias=True, indent=2) + "\n"
    if output == "yaml":
        import yaml

        return yaml.safe_dump(plan.model_dump(mode="json", by_alias=True), sort_keys=False)
    from rlhf_flow.trace.picture import draw_mermaid, draw_text

    draw = draw_mermaid if output == "mermaid" else draw_text
    title = "%% " if output == "mermaid" else ""
    pictures = [f"{title}{plan.job}: {name.value}\n{draw(graph)}" for name, graph in graphs.items()]
    return "\n\n".join(pictures) + "\n"


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 rank, 2 ranks."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def print_tables(plan: Plan, console: Console) -> None:
    """Roles, calls, memory and reasons, for people."""
    pools = [
        f"{pool.nodes} x {pool.devices_per_node} {pool.device.value} (pool {pool.name})"
        for pool in plan.pools
    ]
    engines = [_engines(each) for each in plan.generations]
    console.print(f"[bold]{plan.job}[/bold]: {', '.join([*pools, *engines])}", highlight=False)
    console.print(roles_table(plan))
    console.print(calls_table(plan))
    for memory in plan.memory:
        where = _group(memory) if len(plan.memory) > 1 else ""
        console.print(memory_table(memory, where))
        console.print(peaks_table(memory, where))
    for reason in plan.reasons:
        console.print(f"- {reason}", highlight=False, markup=False)


def roles_table(plan: Plan) -> Table:
    """One line for each role with a model: its engine, where, how cut, and how it computes."""
    computing = ("precision", "activations", "micro-batch tokens")
    names = ("role", "engine", "devices", *CUT, "parameters", *computing)
    table = _table("Roles", names, right=(*CUT, "parameters", "micro-batch tokens"))
    for role in plan.roles:
        if role.mesh is None or role.engine is None or role.precision is None:
            continue
        table.add_row(
            role.role,
            role.engine.value,
            *_mesh(role.mesh, plan),
            f"{role.num_parameters:,}",
            role.precision.value,
            ("recomputed" if role.recomputes else "kept") if role.is_trained else "",
            str(role.micro_batch_tokens),
        )
    return table


def _engines(generation: GenerationPlan) -> str:
    """How many, of how many ranks, and of which, where there is a choice."""
    from rlhf_api.plan_text import describe_groups

    mesh = generation.mesh
    number, ranks = counted(mesh.data, "generation engine"), counted(mesh.tensor, "rank")
    which = f" {describe_groups(mesh)}" if mesh.tensor > 1 and mesh.data > 1 else ""
    return f"{number} of {ranks}{which} for {generation.role}"


def calls_table(plan: Plan) -> Table:
    """One line for each call: what, where, how cut, how long it is expected to take, fields."""
    from rlhf_cli.expected_times import call_times

    times = call_times(plan)
    expected = ("expected",) if times else ()
    names = ("graph", "call", "kind", "devices", *CUT, *expected, "reads -> writes")
    table = _table("Calls", names, (*CUT, *expected))
    for call in plan.calls:
        time = [times.get((call.graph, call.call), "")] if times else []
        place = _site(call, plan)
        table.add_row(call.graph.value, call.call, call.kind.value, *place, *time, _fields(call))
    return table


def _site(call: CallPlan, plan: Plan) -> tuple[str, str, str, str]:
    """Where a call runs, and how it is cut there; of a transition from other devices also which."""
    if call.mesh is None:
        return (call.off_rank_process, "", "", "")
    where, *cut = _mesh(call.mesh, plan)
    source = call.source_mesh
    if source is not None and source.ranks != call.mesh.ranks:
        where = f"{_where(source.ranks, source.pool, plan)} to {where}"
    data, tensor, pipeline = cut
    return (where, data, tensor, pipeline)


def _table(title: str, names: Sequence[str], right: Sequence[str]) -> Table:
    table = Table(title=title, title_justify="left", expand=False)
    for name in names:
        justify: JustifyMethod = "right" if name in right else "left"
        table.add_column(name, justify=justify, overflow="fold")
    return table


def memory_table(memory: MemoryPlan, where: str = "") -> Table:
    """One line for each use of memory, with the phases in which it is there."""
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
    """One line for each phase: the sum of what is there, beside what a device has."""
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


def _mesh(mesh: Mesh, plan: Plan) -> tuple[str, str, str, str]:
    """Devices, and replicas, tensor ranks and pipeline stages, as CUT names them."""
    where = _where(mesh.ranks, mesh.pool, plan)
    return (where, str(mesh.data), str(mesh.tensor), str(mesh.pipeline))


def _group(memory: MemoryPlan) -> str:
    from rlhf_api.plan_text import describe_devices

    return describe_devices(memory.ranks, memory.pool)


def _where(ranks: range, pool: str, plan: Plan) -> str:
    """Devices, as short as they are clear: `0-3`, with several pools `critics 0-3`."""
    shown = f"{ranks.start}-{ranks.stop - 1}" if len(ranks) > 1 else str(ranks.start)
    return shown if len(plan.pools) == 1 else f"{pool} {shown}"


def _fields(call: CallPlan) -> str:
    return f"{', '.join(call.reads)} -> {', '.join(call.writes) or call.effect}".strip()


def _console() -> Console:
    console = Console()
    if not console.is_terminal:
        return Console(width=PIPE_WIDTH)
    return console
