"""`rlhf status`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Context, Kubeconfig, Namespace, connect_cluster

if TYPE_CHECKING:
    from rlhf_kube.protocol import Cluster


class StatusOutput(StrEnum):
    """Output formats for programs."""

    JSON = "json"
    YAML = "yaml"
    NAME = "name"


def status(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A job. Default: all jobs.")
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Show changes; of one job until its end.")
    ] = False,
    output: Annotated[
        StatusOutput | None, typer.Option("--output", "-o", help="Output format for programs.")
    ] = None,
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of all namespaces.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show jobs on a cluster: all in a table, or one on a page.

    With a name and --watch the exit code is the job's: 0 it succeeded, 1 a fault of rlhf, 2 the
    manifest or the cluster does not allow it, 3 your data or code, 4 it failed otherwise.

    \b
    Examples:
      rlhf status
      rlhf status sort-grpo
      rlhf status sort-grpo --watch
      rlhf status sort-grpo -o json
      rlhf status --all-namespaces
    """
    from rlhf_cli.cluster.watching import watch_jobs

    # Refused, because --all-namespaces would be ignored: names are unique in a namespace only.
    if name is not None and all_namespaces:
        raise typer.BadParameter("a job is in one namespace: give -n instead", param_hint="-A")
    if watch and output is not None:
        raise typer.BadParameter("its output is for people: leave -o out", param_hint="--watch")
    cluster = connect_cluster(kubeconfig, context, namespace)
    if name is not None:
        _watch_job(cluster, name) if watch else _print_job(cluster, name, output)
    elif watch:
        watch_jobs(cluster, None if all_namespaces else cluster.namespace)
    else:
        _print_jobs(cluster, output, all_namespaces)


def _watch_job(cluster: Cluster, name: str) -> None:
    """Show a job until it has ended, and exit with its code."""
    from rlhf_cli.cluster.jobs import plain_name
    from rlhf_cli.cluster.watching import combined_exit_code, display, wait_for_end

    with display() as shown:
        jobs = wait_for_end(cluster, cluster.namespace, [plain_name(name)], shown)
    raise typer.Exit(combined_exit_code(jobs.values()))


def _print_job(cluster: Cluster, name: str, output: StatusOutput | None) -> None:
    from datetime import UTC, datetime

    from rlhf_cli.cluster.job_page import job_page
    from rlhf_cli.cluster.job_text import serialize_job
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_cli.console import page_console

    job = find_job(cluster, name)
    if output is None:
        page_console().print(job_page(job, datetime.now(UTC)))
    else:
        typer.echo(serialize_job(job.document, output), nl=False)


def _print_jobs(cluster: Cluster, output: StatusOutput | None, all_namespaces: bool) -> None:
    from datetime import UTC, datetime

    from rlhf_cli.cluster.job_text import jobs_table, serialize_jobs
    from rlhf_cli.cluster.jobs import read_job
    from rlhf_kube.kinds import Kind

    # The API server promises no order.
    items = cluster.list(Kind.JOB, None if all_namespaces else cluster.namespace)
    documents = sorted(
        items, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"])
    )
    if output is not None:
        typer.echo(serialize_jobs(documents, output), nl=False)
    elif documents:
        jobs = [read_job(document) for document in documents]
        typer.echo(jobs_table(jobs, datetime.now(UTC), with_namespaces=all_namespaces), nl=False)
    else:
        scope = "any namespace" if all_namespaces else f"namespace {cluster.namespace}"
        typer.echo(f"No jobs in {scope}.", err=True)
