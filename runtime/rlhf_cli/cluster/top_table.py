"""The table of `rlhf top`: who holds which GPUs, and whether they train. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from rlhf_api.on_cluster import OWNER_LABEL, QUEUE_LABEL
from rlhf_api.status import JobPhase
from rlhf_cli.cluster.job_text import age, align_columns, phase_text
from rlhf_cli.cluster.jobs import Job

HEAD = ("NAME", "PHASE", "STEP", "GPUS", "BUSY", "IDLE", "QUEUE", "OWNER", "AGE")


def top_table(jobs: Iterable[Job], now: datetime, *, all_jobs: bool, with_namespaces: bool) -> str:
    """A line of totals, a header, and a line per job; those with the most GPUs first.

    Args:
        all_jobs: also list ended jobs that hold no GPU.
    """
    listed = [job for job in jobs if all_jobs or job.status.gpus or not job.has_ended]
    listed.sort(key=lambda job: (-job.status.gpus, job.created, job.namespace, job.name))
    head = ("NAMESPACE", *HEAD) if with_namespaces else HEAD
    rows = [
        (job.namespace, *_cells(job, now)) if with_namespaces else _cells(job, now)
        for job in listed
    ]
    return _totals(listed) + align_columns([head, *rows])


def _totals(jobs: Sequence[Job]) -> str:
    held = sum(job.status.gpus for job in jobs)
    busy = sum(job.status.busy_gpus for job in jobs)
    running = sum(job.status.phase is JobPhase.RUNNING for job in jobs)
    ended = sum(job.has_ended for job in jobs)
    waiting = len(jobs) - running - ended
    return f"GPUs: {held} held, {busy} busy; jobs: {running} running, {waiting} not running\n"


def _cells(job: Job, now: datetime) -> tuple[str, ...]:
    status, progress = job.status, job.status.progress
    seconds = status.gpu_seconds
    return (
        job.name,
        phase_text(job),
        f"{progress.step}/{progress.total_steps}" if progress else "",
        str(status.gpus),
        str(status.busy_gpus),
        f"{100 * status.idle_gpu_seconds // seconds}%" if seconds else "",
        _label(job, QUEUE_LABEL),
        owner(job),
        age(job.created, now),
    )


def owner(job: Job) -> str:
    """The job's owner: its label, else the object that created it; empty if it has neither."""
    if label := _label(job, OWNER_LABEL):
        return label
    references = job.document["metadata"].get("ownerReferences") or ()
    return next((f"{reference['kind']}/{reference['name']}" for reference in references), "")


def _label(job: Job, name: str) -> str:
    labels = job.document["metadata"].get("labels") or {}
    return str(labels.get(name, ""))
