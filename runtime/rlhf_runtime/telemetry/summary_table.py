"""The summary of a run as a table on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from rlhf_runtime.telemetry.metric_names import describe, format_bytes, format_seconds
from rlhf_runtime.telemetry.records import Outcome
from rlhf_runtime.telemetry.summary import Change, Summary

STYLES = {
    Outcome.SUCCEEDED: "bold green",
    Outcome.FAILED: "bold red",
    Outcome.INTERRUPTED: "bold yellow",
    Outcome.UNFINISHED: "bold yellow",
}


def summary_table(summary: Summary, files: Sequence[Path] = ()) -> Table:
    """Outcome, evaluation before and after training, time per phase, files."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("outcome", _outcome(summary))
    # Most important first: evaluation, then training.
    for change in (summary.exact_match, summary.evaluation_reward, summary.reward):
        if change is not None:
            table.add_row(describe(change.metric).title.lower(), _change(change))
    if summary.total_seconds is not None:
        table.add_row("total time", format_seconds(summary.total_seconds))
    table.add_row("training", _training(summary))
    if summary.phase_seconds:
        table.add_row("of which", _phases(summary))
    if summary.peak_memory:
        peak = max(summary.peak_memory, key=lambda process: summary.peak_memory[process])
        size = format_bytes(summary.peak_memory[peak])
        table.add_row("peak memory", f"{size} in {peak}")
    if summary.starts > 1:
        table.add_row("starts", str(summary.starts))
    if summary.restarts or summary.steps_repeated:
        table.add_row("restarts", f"{summary.restarts}, {summary.steps_repeated} steps repeated")
    for index, path in enumerate(files):
        table.add_row("files" if index == 0 else "", str(path))
    return table


def _outcome(summary: Summary) -> Text:
    text = Text(summary.outcome.value, style=STYLES[summary.outcome])
    text.append(f"  {summary.steps} of {summary.total_steps} steps", style="not bold default")
    if summary.reason:
        text.append(f"\n{summary.reason}: {summary.message}", style="not bold default")
    return text


def _change(change: Change) -> Text:
    text = Text(f"{change.first:.3f} → ")
    text.append(f"{change.last:.3f}", style="bold")
    text.append(f"   best {change.best:.3f} at step {change.best_step}", style="dim")
    return text


def _training(summary: Summary) -> str:
    parts = [format_seconds(summary.training_seconds)]
    if summary.step_seconds_median is not None:
        parts.append(f"{format_seconds(summary.step_seconds_median)} a step")
    if summary.tokens_per_second is not None:
        parts.append(f"{summary.tokens_per_second:,.0f} tokens/s")
    return ", ".join(parts)


def _phases(summary: Summary) -> str:
    total = max(summary.training_seconds, 1e-9)
    by_time = sorted(summary.phase_seconds.items(), key=lambda item: -item[1])
    return "\n".join(
        f"{phase:<11} {format_seconds(seconds):>10}  {seconds / total:>4.0%}"
        for phase, seconds in by_time
    )
