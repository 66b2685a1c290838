"""A job as a page for people: state, reason, progress and artifacts. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rlhf_api.status import ConditionStatus, ConditionType, JobPhase
from rlhf_cli.cluster.job_text import age, phase_text
from rlhf_cli.cluster.jobs import Job
from rlhf_runtime.telemetry.metric_names import (
    describe,
    format_bytes,
    format_seconds,
    format_value,
)

LABEL_WIDTH = 12
BAR_WIDTH = 28
STYLES: Mapping[str, str] = {
    JobPhase.RUNNING: "bold cyan",
    JobPhase.RESTARTING: "bold yellow",
    JobPhase.SUSPENDED: "bold yellow",
    JobPhase.SUCCEEDED: "bold green",
    JobPhase.FAILED: "bold red",
}
BAD: Mapping[str, str] = {
    ConditionType.STALLED: ConditionStatus.TRUE,
    ConditionType.FAILED: ConditionStatus.TRUE,
    ConditionType.CHECKPOINTS_FAILING: ConditionStatus.TRUE,
    ConditionType.ACCEPTED: ConditionStatus.FALSE,
}
"""The status of a condition that is shown in red."""


def job_page(job: Job, now: datetime, *, short: bool = False) -> RenderableType:
    """Render everything that the cluster reports about a job.

    Args:
        now: for ages, in UTC.
        short: leave out conditions and artifacts until the job has ended.
    """
    rows: list[RenderableType] = [_title(job, now), *_reason(job), *_progress(job), *_plan(job)]
    rows += [*_devices(job), *_restarts(job, now), *_checkpoint(job, now), *_takeover(job)]
    # Redrawn several times a second, the page has to fit on a screen.
    if not short or job.has_ended:
        rows += [*_artifacts(job), *_conditions(job, now)]
    return Group(*rows)


def _row(label: str, *parts: RenderableType) -> RenderableType:
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_column(width=LABEL_WIDTH, style="dim")
    row.add_row(label, *parts)
    return row


def _plain(text: str, style: str = "") -> Text:
    return Text(text, style=style, overflow="fold")


def _title(job: Job, now: datetime) -> RenderableType:
    text = Text(job.name, style="bold", overflow="fold")
    text.append(f"   {phase_text(job)}", style=STYLES.get(phase_text(job), "bold"))
    text.append(f"   namespace {job.namespace}, {age(job.created, now)} old", style="not bold dim")
    return text


def _reason(job: Job) -> list[RenderableType]:
    status = job.status
    # An old reason would mislead: it is about the previous spec.
    if not job.is_observed:
        pending = (
            "the operator has not reconciled this version of the job yet; does the operator run?"
        )
        return [_row("why", _plain(pending, "yellow"))]
    words = ": ".join(filter(None, (status.reason or "", status.message)))
    style = "red" if status.phase is JobPhase.FAILED else ""
    return [_row("why", _plain(words, style))] if words else []


def _progress(job: Job) -> list[RenderableType]:
    progress = job.status.progress
    if progress is None:
        return []
    total = max(progress.total_steps, 1)
    text = Text(f" {progress.step}/{progress.total_steps}  {progress.percent} %", style="bold")
    if not job.has_ended:
        text.append(f"  {progress.phase}", style="not bold")
        if progress.seconds_remaining is not None:
            left = format_seconds(progress.seconds_remaining)
            text.append(f"  {left} left", style="not bold")
    bar = ProgressBar(total=total, completed=min(progress.step, total), width=BAR_WIDTH)
    return [_row("progress", bar, text), *_metrics(job)]


def _metrics(job: Job) -> list[RenderableType]:
    progress = job.status.progress
    assert progress is not None
    shown = {} if progress.reward is None else {"reward": progress.reward}
    if progress.tokens_per_second is not None:
        shown["tokens/s"] = f"{progress.tokens_per_second:,}"
    for name, value in progress.metrics.items():
        if name != "reward/mean":
            about = describe(name)
            shown[about.title.lower()] = format_value(float(value), about.format)
    text = Text(overflow="fold")
    for label, value in shown.items():
        text.append(f"{label} ", style="dim")
        text.append(f"{value}   ")
    return [_row("metrics", text)] if shown else []


def _plan(job: Job) -> list[RenderableType]:
    plan = job.status.plan
    if plan is None:
        return []
    peak = format_bytes(plan.peak_memory_bytes)
    step = f"{plan.step_seconds} s a step expected, " if plan.step_seconds else ""
    return [_row("plan", _plain(f"{plan.placement}, {step}{peak} per device: {plan.summary}"))]


def _devices(job: Job) -> list[RenderableType]:
    status = job.status
    gpus = f"{status.gpus} in use" if status.gpus else "none in use"
    spent = f", {status.gpu_seconds / 3600:.1f} GPU hours so far" if status.gpu_seconds else ""
    where = f", on RayCluster {status.cluster.name}" if status.cluster else ""
    return [_row("GPUs", _plain(gpus + spent + where))]


def _restarts(job: Job, now: datetime) -> list[RenderableType]:
    restarts = job.status.restarts
    if not restarts.total and restarts.next_time is None:
        return []
    parts = {
        "of workers": restarts.incarnations,
        "of the driver": restarts.drivers,
        "of the cluster": restarts.clusters,
    }
    words = ", ".join(f"{count} {name}" for name, count in parts.items() if count)
    text = f"{restarts.total}" + (f": {words}" if words else "")
    if restarts.steps_repeated:
        text += f"; {restarts.steps_repeated} steps repeated"
    if restarts.next_time is not None and restarts.next_time > now:
        text += f"; the next in {age(now, restarts.next_time)}"
    return [_row("restarts", _plain(text))]


def _checkpoint(job: Job, now: datetime) -> list[RenderableType]:
    status, saved = job.status, job.status.checkpoint
    failing = any(entry.type is ConditionType.CHECKPOINTS_FAILING for entry in status.conditions)
    rows = []
    if saved is not None:
        since = "" if saved.time is None else f", {age(saved.time, now)} old"
        rows.append(_row("checkpoint", _plain(f"step {saved.step}{since}, {saved.path}")))
    if status.checkpoint_failures or failing:
        text = f"{status.checkpoint_failures} checkpoints could not be written"
        now_text = "; they still fail, see the conditions" if failing else ""
        rows.append(_row("not saved", _plain(text + now_text, "red" if failing else "")))
    return rows


def _takeover(job: Job) -> list[RenderableType]:
    takeover = job.status.takeover
    return [_row("folder", _plain(takeover))] if takeover else []


def _artifacts(job: Job) -> list[RenderableType]:
    artifacts = job.status.artifacts
    locations = {
        "model": artifacts.model,
        "report": artifacts.report,
        "checkpoints": artifacts.checkpoints,
    }
    return [_row(name, _plain(location)) for name, location in locations.items() if location]


def _conditions(job: Job, now: datetime) -> list[RenderableType]:
    if not job.status.conditions:
        return []
    # A condition whose message the page already shows as the reason gives its reason only.
    shown = job.status.message if job.is_observed else ""
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for condition in job.status.conditions:
        style = "red" if BAD.get(condition.type) == condition.status else ""
        since = age(condition.last_transition_time, now)
        has_message = condition.message not in ("", shown)
        text = f"{condition.reason}: {condition.message}" if has_message else condition.reason
        table.add_row(condition.type, condition.status, since, text, style=style)
    return [_row("conditions", table)]
