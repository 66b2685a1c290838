"""`rlhf top`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rlhf_cli.options import Context, Kubeconfig, Namespace, connect_cluster

if TYPE_CHECKING:
    from rlhf_kube.protocol import Cluster


def top(
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Show the jobs of all namespaces.")
    ] = False,
    all_jobs: Annotated[
        bool, typer.Option("--all", help="Also show ended jobs that hold no GPU.")
    ] = False,
    once: Annotated[
        bool, typer.Option("--once", help="Print the table once, as outside of a terminal.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show who holds GPUs on a cluster, and which of them train, until Ctrl-C.

    BUSY counts the GPUs of a job whose workers train now, IDLE is the idle part of its GPU time
    so far. OWNER is the label rlhf-operator.dev/owner, else the object that created the job.

    \b
    Examples:
      rlhf top
      rlhf top --all-namespaces
      rlhf top -A --once
    """
    from rlhf_cli.console import page_console

    cluster = connect_cluster(kubeconfig, context, namespace)
    scope = None if all_namespaces else cluster.namespace
    if once or not page_console().is_terminal:
        _print_once(cluster, scope, all_jobs)
    else:
        _follow(cluster, scope, all_jobs)


def _print_once(cluster: Cluster, scope: str | None, all_jobs: bool) -> None:
    from datetime import UTC, datetime

    from rlhf_cli.cluster.jobs import read_job
    from rlhf_cli.cluster.top_table import top_table
    from rlhf_kube.kinds import Kind

    jobs = map(read_job, cluster.list(Kind.JOB, scope))
    now = datetime.now(UTC)
    typer.echo(top_table(jobs, now, all_jobs=all_jobs, with_namespaces=scope is None), nl=False)


def _follow(cluster: Cluster, scope: str | None, all_jobs: bool) -> None:
    from rlhf_cli.cluster.watching import follow_table

    follow_table(cluster, scope, all_jobs)
