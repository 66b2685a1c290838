"""`rlhf cancel`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Context, JobName, Kubeconfig, Namespace, connect_cluster

if TYPE_CHECKING:
    from rlhf_cli.cluster.jobs import Job


def cancel(
    name: JobName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Delete a job and its cluster; its files stay.

    \b
    Examples:
      rlhf cancel sort-grpo
      rlhf cancel sort-grpo --yes
    """
    from rlhf_cli.cluster.errors import JobNotFound, NotConfirmed
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_kube.kinds import Kind

    cluster = connect_cluster(kubeconfig, context, namespace)
    job = find_job(cluster, name)
    typer.echo(cancel_text(job))
    if not yes and not _confirmed():
        raise NotConfirmed(f"{job.name} was not deleted: give --yes, or answer y")
    # The uid keeps a new job of the same name, submitted meanwhile, from being deleted.
    if not cluster.delete(Kind.JOB, job.namespace, job.name, uid=job.uid):
        raise JobNotFound(
            f"{job.name} was replaced by a new job, or deleted, meanwhile: nothing was deleted; "
            f"look at it with `rlhf status {job.name}`"
        )
    typer.echo(f"{job.name} is deleted; its cluster follows.")


def cancel_text(job: Job) -> str:
    """Sentences about what a deletion removes and keeps. Pure."""
    from rlhf_cli.cluster.location import reader_settings

    status, progress = job.status, job.status.progress
    steps = f", step {progress.step} of {progress.total_steps}" if progress else ""
    lines = [f"This deletes {job.name} in {job.namespace} ({status.phase}{steps})."]
    if status.cluster is not None:
        gpus = f" with {status.gpus} GPUs" if status.gpus else ""
        lines.append(f"Its cluster {status.cluster.name}{gpus} is deleted with it.")
    location = reader_settings(job.name, job.spec, status.artifacts).location
    where = f" at {location}" if location is not None else ""
    if status.checkpoint is not None:
        lines.append(f"Checkpoints stay{where}; the newest is of step {status.checkpoint.step}.")
    elif location is not None:
        lines.append(f"Its files stay{where}.")
    if not job.has_ended:
        lines.append(f"To pause it instead: rlhf suspend {job.command_arguments}")
    return "\n".join(lines)


def _confirmed() -> bool:
    try:
        return typer.confirm("Delete it?", default=False)
    except typer.Abort:  # nobody is there to answer
        return False
