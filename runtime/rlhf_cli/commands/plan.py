"""`rlhf plan`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Devices, Filename, Manifest, Overrides

if TYPE_CHECKING:
    from rich.console import Console

    from rlhf_api.plan import GraphName, Plan
    from rlhf_api.spec.job import RLHFJob
    from rlhf_flow.trace.graph import Graph
    from rlhf_planner.problem.profile import Profile


class PlanOutput(StrEnum):
    """Output formats of a plan."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    GRAPH = "graph"
    MERMAID = "mermaid"


def plan(
    file: Manifest,
    devices: Devices = None,
    output: Annotated[
        PlanOutput, typer.Option("--output", "-o", help="Output format.")
    ] = PlanOutput.TABLE,
    html: Annotated[
        Path | None, typer.Option("--html", help="Also write an HTML page with the timeline.")
    ] = None,
    prove: Annotated[
        bool, typer.Option("--prove", help="Search until no faster plan is possible.")
    ] = False,
    profile: Annotated[
        Path | None, typer.Option("--profile", help="A file that `rlhf profile` has written.")
    ] = None,
    explain: Annotated[
        str | None, typer.Option("--explain", help="Explain a call, such as actor.train.")
    ] = None,
    diff: Annotated[
        Path | None, typer.Option("--diff", help="Compare with a plan that -o json printed.")
    ] = None,
    overrides: Overrides = None,
    _filename: Filename = False,
) -> None:
    """Show a job's plan: devices, memory and expected times.

    \b
    Examples:
      rlhf plan job.yaml
      rlhf plan job.yaml --devices 2
      rlhf plan job.yaml --set spec.rollout.samplesPerPrompt=16
      rlhf plan job.yaml -o graph
      rlhf plan job.yaml --html plan.html
      rlhf plan job.yaml --prove
      rlhf plan job.yaml --profile job.profile.json
      rlhf plan job.yaml --explain actor.train
      rlhf plan job.yaml -o json > before.json; rlhf plan job.yaml --diff before.json
    """
    from rlhf_cli.console import page_console
    from rlhf_cli.plan_diff import print_diff, read_plan
    from rlhf_cli.plan_explain import print_explanation
    from rlhf_cli.plan_times import write_page
    from rlhf_planner.problem.profile import read_profile

    other = None if diff is None else read_plan(diff)
    measured = None if profile is None else read_profile(profile)
    shown: list[tuple[Mapping[GraphName, Graph], Plan]] = []
    for job, graphs, job_plan in _plan_jobs(file, devices, overrides or [], prove, measured):
        if output is PlanOutput.TABLE:
            console = page_console(highlight=True)
            _print_tables(graphs, job_plan, console)
            if explain is not None:
                print_explanation(job, graphs, job_plan, explain, measured, console)
            if other is not None:
                print_diff(job_plan, other, console)
        else:
            _write(graphs, job_plan, output, is_first=not shown)
        shown.append((graphs, job_plan))
    if html is not None:
        write_page(shown, html)


def _print_tables(graphs: Mapping[GraphName, Graph], job_plan: Plan, console: Console) -> None:
    from rlhf_cli.plan_tables import print_tables
    from rlhf_cli.plan_times import print_times

    print_tables(job_plan, console)
    print_times(graphs, job_plan, console)


def _write(
    graphs: Mapping[GraphName, Graph], job_plan: Plan, output: PlanOutput, is_first: bool
) -> None:
    from rlhf_cli.plan_tables import render

    is_document = output in (PlanOutput.JSON, PlanOutput.YAML)
    # Several jobs of one file are one stream of documents.
    separator = "---\n" if is_document and not is_first else ""
    sys.stdout.write(separator + render(graphs, job_plan, output))


def _plan_jobs(
    file: Path,
    devices: int | None,
    overrides: Sequence[str],
    prove: bool,
    measured: Profile | None,
) -> Iterator[tuple[RLHFJob, Mapping[GraphName, Graph], Plan]]:
    """Yield every job of a file with its graphs and plan; print warnings on stderr."""
    from rlhf_cli.local_jobs import local_jobs
    from rlhf_cli.manifests import annotate_lines
    from rlhf_cli.planning import trace_and_plan
    from rlhf_cli.user_code import user_code
    from rlhf_flow.jobs.lint import lint_job
    from rlhf_planner.plan import pools_of

    for job in local_jobs(file, overrides):
        # One job after the other: two jobs may have different modules of the same name.
        with annotate_lines(file, job, overrides), user_code(job):
            graphs, job_plan = trace_and_plan(job, pools_of(job, devices), prove, measured)
        for warning in lint_job(job, graphs, job_plan.device):
            typer.echo(f"warning: {warning}", err=True)
        yield job, graphs, job_plan
