"""`rlhf plan --explain CALL`: why a call is where it is, and what it would take otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.table import Table

from rlhf_api.errors import ManifestError
from rlhf_api.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf_api.plan import CallPlan, GraphName, Plan
    from rlhf_api.spec.job import RLHFJob
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.problem.profile import Profile


def print_explanation(
    job: RLHFJob,
    graphs: Mapping[GraphName, Graph],
    plan: Plan,
    call: str,
    profile: Profile | None,
    console: Console,
) -> None:
    """What a call spends its time on, and plans that differ in one choice of its role.

    Args:
        job: the manifest.
        graphs: traced from it.
        plan: of it.
        call: the site of a call of the step.
        profile: measured on such devices, if there is one.
        console: where to print.

    Raises:
        ManifestError: no such call, or none that has a model and times.
    """
    from rlhf_planner.evaluate import evaluate, hardware_of_pools
    from rlhf_planner.plan import resolve_shapes
    from rlhf_planner.problem.from_manifest import problem_of
    from rlhf_planner.search.neighbours import neighbours
    from rlhf_planner.simulation.step_tasks import site_of
    from rlhf_planner.timeline.rows import format_time

    planned = _planned(plan, call)
    problem = problem_of(job, graphs, plan.pools, resolve_shapes(job, graphs), profile)
    hardware = hardware_of_pools(problem.pools, profile)
    found = evaluate(problem, plan, hardware)
    seconds, step = found.calls[call], found.step_seconds
    critical = {site_of(task.task) for task in found.simulation.critical_path}
    console.print(f"\n[bold]{call}[/bold]: {_where(planned)}", highlight=False)
    parts = sorted(((value, name) for name, value in seconds.parts.items() if value), reverse=True)
    spent = ", ".join(
        f"{name.replace('_', ' ')} {value / seconds.total:.0%}" for value, name in parts[:4]
    )
    makes = "it makes steps as long as they are" if call in critical else "others take longer"
    console.print(
        f"{format_time(seconds.total)} of a step of {format_time(step)}; {makes}; {spent}",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 3, 0, 0))
    for name in ("Otherwise", "the call", "a step", "as long"):
        table.add_column(name, justify="left" if name == "Otherwise" else "right")
    for each in neighbours(problem, plan, hardware, call):
        if each.step_seconds is None:
            table.add_row(each.name, "does not fit", "", "")
        else:
            ratio, own = f"{each.step_seconds / step:.3f} x", each.call_seconds
            time = "without it" if own is None else format_time(own)
            table.add_row(each.name, time, format_time(each.step_seconds), ratio)
    console.print(table if table.row_count else "nothing else was to choose for it")


def _planned(plan: Plan, call: str) -> CallPlan:
    """The plan of a call of the step with a model and with times."""
    from rlhf_api.plan import GraphName

    known = [each.call for each in plan.estimate.calls] if plan.estimate else []
    sites = {each.call: each for each in plan.calls if each.graph is GraphName.STEP}
    allowed = [site for site in known if sites[site].role is not None]
    if call not in allowed:
        raise ManifestError(
            [
                Problem(
                    (),
                    "--explain names no call of the step with a model whose time is expected",
                    got=call,
                    allowed=", ".join(allowed) or "none: the speed of the devices is not known",
                    do="give one of these"
                    if allowed
                    else "describe them in resources.nodePools[].hardware",
                )
            ]
        )
    return sites[call]


def _where(planned: CallPlan) -> str:
    mesh = planned.mesh
    assert mesh is not None
    ranks = f"devices {mesh.ranks.start} to {mesh.ranks.stop - 1} of pool {mesh.pool}"
    return f"{ranks}, {mesh.data} x tensor {mesh.tensor} x pipeline {mesh.pipeline}"
