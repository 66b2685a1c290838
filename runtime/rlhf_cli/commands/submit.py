"""`rlhf submit`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import (
    Context,
    Filename,
    Kubeconfig,
    Manifest,
    Namespace,
    Overrides,
    connect_cluster,
)

if TYPE_CHECKING:
    from rlhf_api.spec.job import RLHFJob
    from rlhf_kube.protocol import Cluster


def submit(
    file: Manifest,
    overrides: Overrides = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show the progress until the end.")
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; print a line for each change.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the API server check the jobs; store nothing.")
    ] = False,
    force_conflicts: Annotated[
        bool,
        typer.Option("--force-conflicts", help="Take over fields that other tools have set."),
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
    _filename: Filename = False,
) -> None:
    """Submit the jobs of a file to a cluster.

    The file is checked first, as by `rlhf validate`.

    With --watch or --wait the exit code is the job's: 0 it succeeded, 1 a fault of rlhf, 2 the
    manifest or the cluster does not allow it, 3 your data or code, 4 it failed otherwise.

    \b
    Examples:
      rlhf submit job.yaml
      rlhf submit job.yaml --watch
      rlhf submit job.yaml --set spec.schedule.steps=300 -n team-a
      rlhf submit job.yaml --dry-run
    """
    from rlhf_cli.cluster.submission import apply_job, submitted_document, wait_for_jobs
    from rlhf_cli.cluster.watching import combined_exit_code
    from rlhf_cli.manifests import read_jobs

    jobs = read_jobs(file, overrides or [])
    cluster = connect_cluster(kubeconfig, context, namespace)
    # All jobs are checked before the first is sent, so that a file is not submitted in part.
    _check_jobs(cluster, jobs, namespace, file)
    documents = [
        submitted_document(job, job.metadata.namespace or cluster.namespace) for job in jobs
    ]
    for document in documents:
        typer.echo(apply_job(cluster, document, dry_run, force_conflicts))
    if dry_run:
        return
    if watch or wait:
        raise typer.Exit(combined_exit_code(wait_for_jobs(cluster, documents, watch)))
    # On stderr, so that standard output has one line per job for scripts.
    for metadata in (document["metadata"] for document in documents):
        job_arguments = f"{metadata['name']} -n {metadata['namespace']}"
        typer.echo(f"Follow it: rlhf status {job_arguments} --watch", err=True)


def _check_jobs(
    cluster: Cluster, jobs: Sequence[RLHFJob], namespace: str | None, file: Path
) -> None:
    """Raise ManifestError for problems that only a cluster has; print warnings."""
    from rlhf_api.errors import ManifestError
    from rlhf_cli.cluster.connect import require_version
    from rlhf_cli.cluster.submission import cluster_problems, cluster_warnings

    problems = [problem for job in jobs for problem in cluster_problems(job, namespace, str(file))]
    if problems:
        raise ManifestError(problems)
    # An older API server would drop rules of the CRD and accept jobs that cannot run.
    require_version(cluster)
    for job in jobs:
        for warning in cluster_warnings(job):
            typer.echo(f"{job.name}: {warning}", err=True)
