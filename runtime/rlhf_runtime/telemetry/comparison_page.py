"""The page that compares runs. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_runtime.telemetry.charts import line_chart
from rlhf_runtime.telemetry.comparison import (
    ComparedRun,
    Row,
    compared_charts,
    different_settings,
    results,
)
from rlhf_runtime.telemetry.page import Headline, Section, page
from rlhf_runtime.telemetry.plan_section import table

# Points of all lines together, as in the report of one run.
POINT_BUDGET = 18_000


def comparison_page(runs: Sequence[ComparedRun]) -> str:
    """Build the page: settings that differ, results, and the curves of common metrics."""
    charts = compared_charts(runs)
    lines = sum(len(chart.series) for chart in charts)
    limit = max(60, min(800, POINT_BUDGET // max(1, lines)))
    pieces = [line_chart(chart, limit) for chart in charts]
    curves = f'<div class="grid">{"".join(piece.html for piece in pieces)}</div>' if pieces else ""
    settings = different_settings(runs)
    unread = ", ".join(run.name for run in runs if run.settings is None)
    sections = [
        Section("results", "Results", _table(runs, "Result", results(runs))),
        Section(
            "settings",
            "Settings that differ",
            _table(runs, "Setting", settings) if settings else "<p>None.</p>",
        ),
        Section("curves", "Curves", curves),
    ]
    headline = Headline(
        title=f"{len(runs)} runs",
        tags=sorted({run.summary.algorithm for run in runs if run.summary.algorithm}),
        outcome="",
        subtitle=" · ".join(run.name for run in runs),
        alerts=[f"Manifests of another release are not compared: {unread}."] if unread else [],
        stats=[],
    )
    shown = [section for section in sections if section.html]
    return page(headline, shown, [piece.data for piece in pieces])


def _table(runs: Sequence[ComparedRun], kind: str, rows: Sequence[Row]) -> str:
    return table([kind, *(run.name for run in runs)], [[row.name, *row.values] for row in rows])
