"""Explain a call of a plan: where it runs, what takes its time, and the nearest alternatives."""

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
    """Print what a call spends its time on, and plans that differ in one choice of its role.

    Args:
        job: the manifest.
        graphs: traced from it.
        plan: made for it.
        call: a call of the step, such as actor.train.
        profile: measured times of such devices, if available.
        console: prints it.

    Raises:
        ManifestError: there is no such call, or it has no model or no expected time.
    """
    from rlhf_planner.evaluate import evaluate, hardware_of_pools
    from rlhf_planner.plan import resolve_shapes
    from rlhf_planner.problem.from_manifest import problem_of
    from rlhf_planner.search.neighbours import neighbours
    from rlhf_planner.simulation.step_tasks import site_of
    from rlhf_planner.timeline.rows import format_time

    call_plan = _find_call(plan, call)
    problem = problem_of(job, graphs, plan.pools, resolve_shapes(job, graphs), profile)
    hardware = hardware_of_pools(problem.pools, profile)
    evaluation = evaluate(problem, plan, hardware)
    seconds, step = evaluation.calls[call], evaluation.step_seconds
    # Only calls on the critical path make a step shorter when they get faster.
    critical = {site_of(task.task) for task in evaluation.simulation.critical_path}
    console.print(f"\n[bold]{call}[/bold]: {_devices_text(call_plan)}", highlight=False)
    parts = sorted(((value, name) for name, value in seconds.parts.items() if value), reverse=True)
    spent = ", ".join(
        f"{name.replace('_', ' ')} {value / seconds.total:.0%}" for value, name in parts[:4]
    )
    position = "on the critical path" if call in critical else "not on the critical path"
    console.print(
        f"{format_time(seconds.total)} of a step of {format_time(step)}; {position}; {spent}",
        highlight=False,
    )
    table = Table(box=None, padding=(0, 3, 0, 0))
    for name in ("Otherwise", "the call", "a step", "as long"):
        table.add_column(name, justify="left" if name == "Otherwise" else "right")
    for variant in neighbours(problem, plan, hardware, call):
        if variant.step_seconds is None:
            table.add_row(variant.name, "does not fit", "", "")
        else:
            ratio, own = f"{variant.step_seconds / step:.3f} x", variant.call_seconds
            time = "without it" if own is None else format_time(own)
            table.add_row(variant.name, time, format_time(variant.step_seconds), ratio)
    console.print(table if table.row_count else "it has no alternatives")


def _find_call(plan: Plan, call: str) -> CallPlan:
    """Find a call of the step that has a model and an expected time."""
    from rlhf_api.plan import GraphName

    timed = [call_estimate.call for call_estimate in plan.estimate.calls] if plan.estimate else []
    sites = {
        step_call.call: step_call for step_call in plan.calls if step_call.graph is GraphName.STEP
    }
    allowed = [site for site in timed if sites[site].role is not None]
    if call not in allowed:
        raise ManifestError(
            [
                Problem(
                    (),
                    "--explain must name a call of the step that has a model and an expected time",
                    got=call,
                    allowed=", ".join(allowed) or "none: the speed of the devices is not known",
                    do="give one of these"
                    if allowed
                    else "describe them in resources.nodePools[].hardware",
                )
            ]
        )
    return sites[call]


def _devices_text(call_plan: CallPlan) -> str:
    mesh = call_plan.mesh
    assert mesh is not None
    ranks = f"devices {mesh.ranks.start} to {mesh.ranks.stop - 1} of pool {mesh.pool}"
    return f"{ranks}, {mesh.data} x tensor {mesh.tensor} x pipeline {mesh.pipeline}"
