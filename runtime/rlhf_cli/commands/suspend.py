"""`rlhf suspend` and `rlhf resume`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Context, JobName, Kubeconfig, Namespace, connect_cluster

if TYPE_CHECKING:
    from rlhf_api.status import JobPhase
    from rlhf_cli.cluster.jobs import Job
    from rlhf_kube.protocol import Cluster


def suspend(
    name: JobName,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when it has released its cluster.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Let a job save its state, release its cluster and wait.

    \b
    Examples:
      rlhf suspend sort-grpo
      rlhf suspend sort-grpo --wait
    """
    from rlhf_api.status import JobPhase

    cluster = connect_cluster(kubeconfig, context, namespace)
    job = _unfinished_job(cluster, name, "suspend")
    if job.is_suspended:
        typer.echo(f"{job.name} is suspended already, or about to be.")
    else:
        _set_suspend(cluster, job, True)
        typer.echo(suspend_text(job))
    if wait:
        _wait_for_phase(cluster, job, JobPhase.SUSPENDED)


def resume(
    name: JobName,
    wait: Annotated[bool, typer.Option("--wait", help="Return when it runs again.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Let a suspended job continue from its newest checkpoint.

    \b
    Examples:
      rlhf resume sort-grpo
      rlhf resume sort-grpo --wait
    """
    from rlhf_api.status import JobPhase

    cluster = connect_cluster(kubeconfig, context, namespace)
    job = _unfinished_job(cluster, name, "resume")
    if job.is_suspended:
        _set_suspend(cluster, job, False)
        typer.echo(resume_text(job))
    else:
        typer.echo(f"{job.name} has no suspension to end.{_queue_text(job)}")
    if wait:
        _wait_for_phase(cluster, job, JobPhase.RUNNING)


def suspend_text(job: Job) -> str:
    """Sentences about what a suspension does to the job. Pure."""
    if job.status.cluster is None:
        return (
            f"{job.name} waits; it has no cluster. "
            f"`rlhf resume {job.command_arguments}` lets it continue."
        )
    released = f"{job.status.gpus} GPUs" if job.status.gpus else "its cluster"
    return (
        f"{job.name} finishes its step, saves, releases {released} and waits. "
        f"`rlhf resume {job.command_arguments}` lets it continue."
    )


def resume_text(job: Job) -> str:
    """A sentence about what a resumption does to the job. Pure."""
    saved = job.status.checkpoint
    start = "starts from the beginning" if saved is None else f"continues from step {saved.step}"
    return f"{job.name} gets a cluster again and {start}."


def _queue_text(job: Job) -> str:
    from rlhf_api.status import JobPhase

    # A queue suspends RayClusters, and only the queue can end that.
    if job.status.phase is not JobPhase.SUSPENDED:
        return ""
    return f" It waits because of {job.status.reason or 'its queue'}: {job.status.message}"


def _unfinished_job(cluster: Cluster, name: str, verb: str) -> Job:
    """Read a job. Raises JobHasEnded if it has ended."""
    from rlhf_cli.cluster.errors import JobHasEnded
    from rlhf_cli.cluster.jobs import find_job

    job = find_job(cluster, name)
    if job.has_ended:
        raise JobHasEnded(
            f"there is nothing to {verb}: got {job.name}, which has ended "
            f"({job.status.phase}); delete it and submit it again to continue from its "
            "checkpoints, or submit it under another name"
        )
    return job


def _set_suspend(cluster: Cluster, job: Job, suspended: bool) -> None:
    from rlhf_kube.kinds import Kind

    cluster.merge(Kind.JOB, job.namespace, job.name, {"spec": {"suspend": suspended}})


def _wait_for_phase(cluster: Cluster, job: Job, phase: JobPhase) -> None:
    """Wait; if the job ends meanwhile, exit with its code."""
    from rlhf_cli.cluster.watching import display, wait_for_phase

    with display() as shown:
        reached = wait_for_phase(cluster, job.namespace, job.name, [phase], shown)
    # The job may have ended or stalled before it reached the phase.
    if reached.exit_code is not None:
        raise typer.Exit(reached.exit_code)
