"""The plans of a file as a page: what a step takes, its timeline, and the calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rlhf_api.plan import GraphName, Plan
    from rlhf_flow.trace.graph import Graph

STYLE = (
    "body{font-family:sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem;"
    "color-scheme:light dark}table{border-collapse:collapse}"
    "th,td{text-align:left;padding:.2rem 1rem .2rem 0}td+td{text-align:right}"
)


def write_page(plans: Sequence[tuple[Mapping[GraphName, Graph], Plan]], file: Path) -> None:
    """Write a page of plans with their graphs; it needs no other file and no network.

    Raises:
        typer.BadParameter: it cannot be written.
    """
    title = escape(", ".join(plan.job for _, plan in plans))
    body = "".join(_plan(graphs, plan) for graphs, plan in plans)
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><body>{body}</body></html>\n"
    )
    try:
        file.write_text(page, encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(
            f"the page cannot be written: got {file} ({error.strerror}), allowed a file in a "
            "folder that is there; name another one"
        ) from error


def _plan(graphs: Mapping[GraphName, Graph], plan: Plan) -> str:
    from rlhf_cli.expected_times import (
        STEPS_SHOWN,
        pipeline_fusion_lines,
        simulated,
        times_text,
    )
    from rlhf_planner.timeline.rows import format_time
    from rlhf_planner.timeline.svg import svg_timeline

    simulation = simulated(graphs, plan)
    if simulation is None or plan.estimate is None:
        return f"<h1>{escape(plan.job)}</h1><p>{escape(plan.reasons[-1])}</p>"
    rows = "".join(
        f"<tr><td>{escape(each.call)}</td><td>{format_time(each.seconds)}</td>"
        f"<td>{escape(each.bottleneck.replace('_', ' '))}</td></tr>"
        for each in plan.estimate.calls
    )
    told = "".join(f"<p>{escape(line)}</p>" for line in pipeline_fusion_lines(plan))
    return (
        f"<h1>{escape(plan.job)}</h1><p>{escape(times_text(plan))}</p>"
        f"{svg_timeline(simulation, STEPS_SHOWN)}{told}<table><tr><th>call</th><th>one run</th>"
        f"<th>mostly</th></tr>{rows}</table>"
    )
