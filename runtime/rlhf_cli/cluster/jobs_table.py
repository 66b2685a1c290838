"""Jobs as a table, in columns as kubectl prints them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from rlhf_cli.cluster.ages import age
from rlhf_cli.cluster.jobs import Job

HEAD = ("NAME", "PHASE", "STEP", "REWARD", "GPUS", "RESTARTS", "AGE")


def jobs_table(jobs: Sequence[Job], now: datetime, *, with_namespaces: bool) -> str:
    """A line for each job under a line of titles; every line ends with a line break."""
    head = ("NAMESPACE", *HEAD) if with_namespaces else HEAD
    rows = [
        (job.namespace, *_cells(job, now)) if with_namespaces else _cells(job, now) for job in jobs
    ]
    return aligned([head, *rows])


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Rows of texts as lines of columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def phase_of(job: Job) -> str:
    """Its phase, or that it is being deleted."""
    return "Deleting" if job.is_deleted else job.status.phase


def _cells(job: Job, now: datetime) -> tuple[str, ...]:
    status, progress = job.status, job.status.progress
    return (
        job.name,
        phase_of(job),
        f"{progress.step}/{progress.total_steps}" if progress else "",
        (progress.reward or "") if progress else "",
        str(status.gpus),
        str(status.restarts.total),
        age(job.created, now),
    )
