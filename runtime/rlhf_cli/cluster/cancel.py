"""`rlhf cancel`: delete a job, and say what stays."""

from __future__ import annotations

import sys

import typer

from rlhf_cli.cluster.client import Cluster
from rlhf_cli.cluster.errors import NotConfirmed
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.place import in_force
from rlhf_kube.kinds import Kind


def cancel_command(cluster: Cluster, name: str, confirmed: bool) -> None:
    """Delete a job after a question.

    Args:
        confirmed: whether the question was answered beforehand.

    Raises:
        NotConfirmed: nobody said yes.
    """
    job = find_job(cluster, name)
    typer.echo(cancelling(job))
    if not confirmed and not _says_yes():
        raise NotConfirmed(f"{job.name} was not deleted: give --yes, or answer y")
    cluster.delete(Kind.JOB, job.namespace, job.name, uid=job.uid)
    typer.echo(f"{job.name} is deleted; its cluster follows.")


def cancelling(job: Job) -> str:
    """What will go, and what stays. Pure."""
    status, progress = job.status, job.status.progress
    steps = f", step {progress.step} of {progress.total_steps}" if progress else ""
    lines = [f"This deletes {job.name} in {job.namespace} ({status.phase}{steps})."]
    if status.cluster is not None:
        held = f" with {status.gpus} GPUs" if status.gpus else ""
        lines.append(f"Its cluster {status.cluster.name}{held} goes with it.")
    place = in_force(job.name, job.spec, status.artifacts).place
    where = f" at {place}" if place is not None else ""
    if status.checkpoint is not None:
        lines.append(f"Checkpoints stay{where}; the newest is of step {status.checkpoint.step}.")
    elif place is not None:
        lines.append(f"What it has written stays{where}.")
    if not job.has_ended:
        lines.append(f"To pause it instead: rlhf suspend {job.arguments}")
    return "\n".join(lines)


def _says_yes() -> bool:
    if not sys.stdin.isatty():
        return False
    return typer.confirm("Delete it?", default=False)
