"""report.html: the records of a run's folder on one page.

`write_report` reads the folder and writes the page; the rest is pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from rlhf_api.plan import Plan
from rlhf_runtime.telemetry.charts import LineChart, Piece, columns_chart, line_chart
from rlhf_runtime.telemetry.curves import (
    curves,
    memory_chart,
    phase_columns,
    warm_start_charts,
)
from rlhf_runtime.telemetry.metric_names import describe, format_seconds, format_value
from rlhf_runtime.telemetry.page import Headline, Section, Stat, page
from rlhf_runtime.telemetry.plan_section import (
    TimePair,
    plan_tables,
    table,
    time_pairs,
    times_table,
)
from rlhf_runtime.telemetry.plots import colours
from rlhf_runtime.telemetry.records import Outcome, RunRecords, Span
from rlhf_runtime.telemetry.run_folder import RunFolder
from rlhf_runtime.telemetry.samples_section import samples_section
from rlhf_runtime.telemetry.summary import Change, Summary, summarize
from rlhf_runtime.telemetry.timeline_chart import sample_steps, timeline

# Points of all lines together: keeps the page of the longest run below 2 MB.
POINT_BUDGET = 18_000
# Bars of all timelines together.
SPAN_BUDGET = 4_800


def write_report(folder: RunFolder) -> Path:
    """Write the report of a run, finished or not, and return its path.

    Raises:
        NotARun: the folder contains no run.
        CannotRecord: the folder cannot be written.
    """
    records = folder.read()
    spans = folder.read_spans(sample_steps(records.steps))
    folder.write_report(render(records, spans, folder))
    return folder.report


def render(records: RunRecords, spans: Mapping[int, Sequence[Span]], folder: RunFolder) -> str:
    """The page for a run's records and spans, and for the samples, manifest and plan in its
    folder."""
    summary = summarize(records)
    builder = _Builder(records)
    sections = [
        Section("learning", "Learning", builder.learning()),
        Section("samples", "Samples", samples_section(folder)),
        Section("time", "Time", builder.phases(summary)),
        Section("timeline", "Step timeline", _timelines(spans, records)),
        Section("memory", "Memory", builder.memory()),
        Section("startup", "Start-up", builder.startup(summary)),
        Section("unscored", "Not scored", _unscored(records)),
    ]
    plan = folder.read_plan()
    if plan is not None:
        pairs = compare_times(plan, records, folder)
        sections.append(Section("expected", "Expected times", times_table(plan, pairs)))
        sections.append(Section("plan", "Plan", plan_tables(plan)))
    sections.append(Section("repeat", "Run it again", _repeat(records, folder.read_manifest())))
    shown = [section for section in sections if section.html]
    return page(_headline(summary, records), shown, builder.data)


def compare_times(plan: Plan, records: RunRecords, folder: RunFolder) -> tuple[TimePair, ...]:
    """Compare expected times with those of the last start.

    Args:
        plan: of the last start.
        records: of the run.
        folder: of the run, with the spans.
    """
    # Earlier starts may have had another plan.
    steps = records.last_start_steps
    return time_pairs(plan, steps, folder.read_spans(sample_steps(steps)))


class _Builder:
    """Draws charts and keeps the data of their read-outs in the order they appear."""

    def __init__(self, records: RunRecords) -> None:
        self.data: list[Mapping[str, object]] = []
        self._records = records
        self._curves = curves(records)
        self._warm_start = warm_start_charts(records)
        # 8: at most so many lines are in the memory chart.
        lines = len(self._curves.large) + len(self._curves.small) + len(self._warm_start) + 8
        self._limit = max(60, min(800, POINT_BUDGET // lines))

    def learning(self) -> str:
        large, small = self._curves.large, self._curves.small
        if not large and not small:
            return '<p class="empty">No training step has finished yet.</p>'
        html = f'<div class="grid wide">{self._lines(large)}</div>' if large else ""
        html += f'<div class="grid">{self._lines(small)}</div>' if small else ""
        return html + _constants(self._curves.constant)

    def phases(self, summary: Summary) -> str:
        columns = phase_columns(self._records, summary.phase_seconds)
        if columns is None or not columns.layers:
            return ""
        return self._keep(columns_chart(columns))

    def memory(self) -> str:
        chart = memory_chart(self._records)
        return self._keep(line_chart(chart, self._limit)) if chart else ""

    def startup(self, summary: Summary) -> str:
        html = _bars(summary.startup_seconds)
        if self._warm_start:
            html += "<h3>Supervised warm start</h3>"
            html += f'<div class="grid">{self._lines(self._warm_start)}</div>'
        return html

    def _lines(self, charts: Sequence[LineChart]) -> str:
        return "".join(self._keep(line_chart(chart, self._limit)) for chart in charts)

    def _keep(self, piece: Piece) -> str:
        # The page's script finds the data of a chart by its position.
        self.data.append(piece.data)
        return piece.html


def _headline(summary: Summary, records: RunRecords) -> Headline:
    run = records.runs[-1] if records.runs else None
    started = _date(records.runs[0].started) if records.runs else ""
    parts = [started, run.devices if run else "", run.output if run else ""]
    return Headline(
        title=summary.job or "unnamed run",
        tags=[summary.algorithm] if summary.algorithm else [],
        outcome=summary.outcome.value,
        subtitle=" · ".join(part for part in parts if part),
        alerts=_alerts(summary, records),
        stats=_stats(summary),
    )


def _alerts(summary: Summary, records: RunRecords) -> list[str]:
    texts = []
    if summary.outcome is Outcome.UNFINISHED:
        texts.append(
            f"This run has not ended: {summary.steps} of {summary.total_steps} steps are "
            "recorded. It is still running, or it was killed."
        )
    elif summary.outcome is not Outcome.SUCCEEDED:
        cause = ": ".join(part for part in (summary.reason, summary.message) if part)
        texts.append(f"This run {_ENDED[summary.outcome]} after step {summary.steps}. {cause}")
    elif summary.message:
        texts.append(f"{summary.message[:1].upper()}{summary.message[1:]}.")
    if summary.starts > 1:
        texts.append(f"The command was given {summary.starts}×.")
    if summary.restarts:
        texts.append(f"Workers were started again {summary.restarts}×.")
    if summary.steps_repeated:
        texts.append(f"{summary.steps_repeated} steps were trained again.")
    if summary.not_finite:
        named = ", ".join(f"{name} ({count}×)" for name, count in summary.not_finite.items())
        texts.append(f"Not finite in some steps: {named}.")
    if records.damaged_lines:
        texts.append(f"{records.damaged_lines} unreadable lines of metrics.jsonl were skipped.")
    return texts


_ENDED = {Outcome.FAILED: "failed", Outcome.INTERRUPTED: "was interrupted"}


def _stats(summary: Summary) -> list[Stat]:
    stats = []
    evaluation = summary.exact_match or summary.evaluation_reward
    for change in (evaluation, summary.reward):
        if change is not None:
            stats.append(_change_stat(change))
    total = f"of {summary.total_steps:,}" if summary.total_steps else ""
    stats.append(Stat("Steps", f"{summary.steps:,}", detail=total))
    if summary.total_seconds is not None or summary.training_seconds:
        seconds = summary.total_seconds or summary.training_seconds
        detail = f"{format_seconds(summary.training_seconds)} of it training"
        stats.append(Stat("Time", format_seconds(seconds), detail=detail))
    if summary.tokens_per_second is not None:
        detail = f"tokens/s, {format_seconds(summary.step_seconds_median or 0)} a step"
        stats.append(Stat("Throughput", f"{summary.tokens_per_second:,.0f}", detail=detail))
    return stats


def _change_stat(change: Change) -> Stat:
    metric = describe(change.metric)
    detail = f"best {format_value(change.best, metric.format)} at step {change.best_step:,}"
    return Stat(
        label=metric.title,
        value=format_value(change.last, metric.format),
        before=format_value(change.first, metric.format),
        detail=detail,
    )


def _timelines(spans: Mapping[int, Sequence[Span]], records: RunRecords) -> str:
    if not spans:
        return ""
    calls = colours(span.call for step in sorted(spans) for span in spans[step])
    slowest = max(records.steps, key=lambda record: record.seconds).step
    seconds = {record.step: record.seconds for record in records.steps}
    limit = SPAN_BUDGET // len(spans)
    # A step in the middle is typical: it is shown first.
    chosen = sorted(spans)[len(spans) // 2]
    buttons, charts = [], []
    for step in sorted(spans):
        mark = " <small>slowest</small>" if step == slowest and len(spans) > 1 else ""
        pressed = "true" if step == chosen else "false"
        buttons.append(
            f'<button type="button" aria-pressed="{pressed}" data-step="{step}" '
            f'title="{format_seconds(seconds[step])}">{step:,}{mark}</button>'
        )
        hidden = "" if step == chosen else " hidden"
        drawn = timeline(step, spans[step], calls, limit)
        charts.append(f'<div class="sheet" data-step="{step}"{hidden}>{drawn}</div>')
    legend = "".join(
        f'<li><i class="b{colour}"></i>{escape(call.replace("_", " "))}</li>'
        for call, colour in calls.items()
    )
    return (
        f'<div class="chart plain"><div class="steps" role="group" aria-label="Step">'
        f"<span>Step</span>{''.join(buttons)}</div>{''.join(charts)}"
        f'<ul class="legend">{legend}</ul></div>'
    )


def _unscored(records: RunRecords) -> str:
    """The table of responses that verifiers could not score."""
    if not records.unscored:
        return ""
    rows = [
        [
            record.reward,
            str(record.step),
            record.fault,
            record.row,
            record.what,
            # The last line of a traceback is the error.
            (record.detail.splitlines() or [""])[-1],
        ]
        for record in records.unscored
    ]
    note = "Some of them, where they are many; <code>score/invalid</code> counts all."
    head = ["Reward", "Step", "Fault", "Row", "What", "Why"]
    return f'<p class="note">{note}</p>{table(head, rows)}'


def _bars(seconds: Mapping[str, float]) -> str:
    if not seconds:
        return ""
    longest = max(max(seconds.values()), 1e-9)
    rows = "".join(
        f'<li><span>{escape(phase)}</span><span class="meter"><i class="b0" '
        f'style="width:{value / longest * 100:.1f}%"></i></span><b>{format_seconds(value)}</b></li>'
        for phase, value in seconds.items()
    )
    return f'<ul class="bars">{rows}</ul>'


def _constants(constant: Mapping[str, float]) -> str:
    if not constant:
        return ""
    items = "".join(
        f"<li>{escape(name)} <b>{format_value(value, describe(name).format)}</b></li>"
        for name, value in constant.items()
    )
    return f'<p class="note">The same in every step:</p><ul class="constants">{items}</ul>'


def _repeat(records: RunRecords, manifest: str | None) -> str:
    html = ""
    last = records.runs[-1] if records.runs else None
    if last is not None and last.command:
        html += f'<div class="code"><pre><code>{escape(last.command)}</code></pre></div>'
    if last is not None and last.packages:
        html += f'<p class="note">Installed for the code: {escape(", ".join(last.packages))}</p>'
    if manifest is not None:
        html += (
            '<details><summary>The manifest</summary><div class="code"><pre><code>'
            f"{escape(manifest)}</code></pre></div></details>"
        )
    return html


def _date(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%d %B %Y, %H:%M UTC").lstrip("0")
