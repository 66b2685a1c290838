"""A job on one line, for logs: its name, then name=value fields of fixed names and order. Pure."""

from __future__ import annotations

import shlex

from rlhf_cli.cluster.jobs import Job
from rlhf_cli.cluster.jobs_table import phase_of
from rlhf_runtime.telemetry.metric_names import format_seconds


def job_line(job: Job) -> str:
    """What is known of a job now; fields without a value are left out."""
    status, progress = job.status, job.status.progress
    fields: dict[str, str | int | None] = {"phase": phase_of(job), "reason": status.reason}
    if progress is not None:
        remaining = progress.seconds_remaining
        fields |= {
            "step": f"{progress.step}/{progress.total_steps}",
            "doing": progress.phase,
            "reward": progress.reward,
            "tokens_per_second": progress.tokens_per_second,
            "left": None if remaining is None or job.has_ended else format_seconds(remaining),
        }
    fields |= {
        "checkpoint": status.checkpoint.step if status.checkpoint else None,
        "restarts": status.restarts.total or None,
        "message": " ".join(status.message.split()) or None if _needs_words(job) else None,
    }
    told = (f"{name}={shlex.quote(str(each))}" for name, each in fields.items() if each is not None)
    return f"{job.name} {' '.join(told)}"


def _needs_words(job: Job) -> bool:
    """Whether its message says more than its progress."""
    return bool(job.status.reason) or job.status.progress is None
