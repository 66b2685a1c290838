"""`rlhf suspend` and `rlhf resume`: a job gives its cluster back and waits, and goes on later."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from rlhf_api.status import JobPhase
from rlhf_cli.cluster.client import Cluster
from rlhf_cli.cluster.errors import JobHasEnded
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.watching import display, wait_for_phase
from rlhf_kube.kinds import Kind


def suspend_command(cluster: Cluster, name: str, wait: bool) -> None:
    """Tell a job to wait.

    Args:
        wait: return when it has given its cluster back.

    Raises:
        JobHasEnded: there is nothing to suspend.
    """
    job = _living(cluster, name, "suspend")
    if job.is_suspended:
        typer.echo(f"{job.name} is told to wait already.")
    else:
        _tell(cluster, job, True)
        typer.echo(suspending(job))
    if wait:
        _wait(cluster, job, [JobPhase.SUSPENDED])


def resume_command(cluster: Cluster, name: str, wait: bool) -> None:
    """Let a job go on.

    Args:
        wait: return when it runs again.

    Raises:
        JobHasEnded: there is nothing to resume.
        typer.Exit: it ended meanwhile; with its exit code.
    """
    job = _living(cluster, name, "resume")
    if not job.is_suspended:
        typer.echo(f"{job.name} is not told to wait.{_queue_text(job)}")
    else:
        _tell(cluster, job, False)
        typer.echo(resuming(job))
    if wait:
        _wait(cluster, job, [JobPhase.RUNNING])


def suspending(job: Job) -> str:
    """What will happen. Pure."""
    held = f"gives {job.status.gpus} GPUs back" if job.status.gpus else "gives its cluster back"
    if job.status.cluster is None:
        return (
            f"{job.name} waits; it holds no cluster. `rlhf resume {job.arguments}` lets it go on."
        )
    return (
        f"{job.name} finishes its step, saves, {held} and waits. "
        f"`rlhf resume {job.arguments}` lets it go on."
    )


def resuming(job: Job) -> str:
    """What will happen. Pure."""
    saved = job.status.checkpoint
    start = "begins at its start" if saved is None else f"goes on from step {saved.step}"
    return f"{job.name} gets a cluster again and {start}."


def _queue_text(job: Job) -> str:
    if job.status.phase is not JobPhase.SUSPENDED:
        return ""
    return f" It waits because of {job.status.reason or 'its queue'}: {job.status.message}"


def _living(cluster: Cluster, name: str, verb: str) -> Job:
    job = find_job(cluster, name)
    if job.has_ended:
        raise JobHasEnded(
            f"there is nothing to {verb}: got {job.name}, which has ended "
            f"({job.status.phase}); submit it under another name to run it again"
        )
    return job


def _tell(cluster: Cluster, job: Job, suspend: bool) -> None:
    cluster.merge(Kind.JOB, job.namespace, job.name, {"spec": {"suspend": suspend}})


def _wait(cluster: Cluster, job: Job, phases: Iterable[JobPhase]) -> None:
    with display() as shown:
        reached = wait_for_phase(cluster, job.namespace, job.name, phases, shown)
    if reached.exit_code is not None:
        raise typer.Exit(reached.exit_code)
