"""Jobs as text: a table with kubectl's columns, a line for logs, json and yaml. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from rlhf_api.yaml_dump import dump_yaml
from rlhf_cli.cluster.jobs import Job
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_runtime.telemetry.metric_names import format_seconds

HEAD = ("NAME", "PHASE", "STEP", "REWARD", "GPUS", "RESTARTS", "AGE")
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def jobs_table(jobs: Sequence[Job], now: datetime, *, with_namespaces: bool) -> str:
    """A header and a line for each job, each with a line break."""
    head = ("NAMESPACE", *HEAD) if with_namespaces else HEAD
    rows = [
        (job.namespace, *_cells(job, now)) if with_namespaces else _cells(job, now) for job in jobs
    ]
    return align_columns([head, *rows])


def job_line(job: Job) -> str:
    """The job's name, then name=value fields of fixed order; empty fields are left out."""
    status, progress = job.status, job.status.progress
    fields: dict[str, str | int | None] = {"phase": phase_text(job), "reason": status.reason}
    if progress is not None:
        remaining = progress.seconds_remaining
        fields |= {
            "step": f"{progress.step}/{progress.total_steps}",
            "doing": progress.phase,
            "reward": progress.reward,
            "tokens_per_second": progress.tokens_per_second,
            "left": None if remaining is None or job.has_ended else format_seconds(remaining),
        }
    # While a job trains without trouble, its message only repeats its progress.
    has_message = bool(status.reason) or progress is None
    fields |= {
        "checkpoint": status.checkpoint.step if status.checkpoint else None,
        "restarts": status.restarts.total or None,
        "message": " ".join(status.message.split()) or None if has_message else None,
    }
    shown = {name: value for name, value in fields.items() if value is not None}
    return f"{job.name} " + " ".join(
        f"{name}={shlex.quote(str(value))}" for name, value in shown.items()
    )


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Align rows of cells in columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = (
        "   ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return "".join(f"{line.rstrip()}\n" for line in lines)


def phase_text(job: Job) -> str:
    """The job's phase, or `Deleting`."""
    return "Deleting" if job.is_deleted else job.status.phase


def age(then: datetime, now: datetime) -> str:
    """The time between the two as kubectl writes it: 45s, 5m10s, 90m, 3h20m, 26h, 3d4h, 12d."""
    seconds = max(0, int((now - then).total_seconds()))
    # kubectl's rule: two units while the first has one digit.
    if seconds < 120:
        return f"{seconds}s"
    for index, (unit, size) in enumerate(_UNITS[:-1]):
        count, rest = divmod(seconds, size)
        if count < (2 if unit != "m" else 1):
            continue
        smaller, small = _UNITS[index + 1]
        if count < 10 and rest >= small:
            return f"{count}{unit}{rest // small}{smaller}"
        return f"{count}{unit}"
    return f"{seconds}s"


def _cells(job: Job, now: datetime) -> tuple[str, ...]:
    status, progress = job.status, job.status.progress
    return (
        job.name,
        phase_text(job),
        f"{progress.step}/{progress.total_steps}" if progress else "",
        (progress.reward or "") if progress else "",
        str(status.gpus),
        str(status.restarts.total),
        age(job.created, now),
    )


def serialize_job(document: Manifest, output: str) -> str:
    """An object as json, as yaml, or by its name as `kubectl get -o name` prints it."""
    if output == "name":
        group = Kind.JOB.api_version.partition("/")[0]
        return f"{Kind.JOB.kind.lower()}.{group}/{document['metadata']['name']}\n"
    return _dump(_plain(document), output)


def serialize_jobs(documents: Sequence[Manifest], output: str) -> str:
    """Objects as one List, or as a name per line."""
    if output == "name":
        return "".join(serialize_job(document, output) for document in documents)
    items = [_plain(document) for document in documents]
    return _dump({"apiVersion": "v1", "kind": "List", "items": items}, output)


def _plain(document: Manifest) -> Manifest:
    """A copy without managedFields, which are long and of no use to people."""
    # JSON makes a deep copy of plain types, as yaml needs them.
    plain: dict[str, Any] = json.loads(json.dumps(document))
    plain["metadata"].pop("managedFields", None)
    return plain


def _dump(document: Manifest, output: str) -> str:
    if output == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    return dump_yaml(document, allow_unicode=True)
