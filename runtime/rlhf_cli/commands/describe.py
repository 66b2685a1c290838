"""`rlhf describe`."""

from __future__ import annotations

from datetime import UTC, datetime

import typer

from rlhf_cli.options import Context, JobName, Kubeconfig, Namespace, connect_cluster


def describe(
    name: JobName,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show a job's status, its pods with their problems, and events.

    \b
    Examples:
      rlhf describe sort-grpo
    """
    from rlhf_cli.cluster.events import events_table, list_events
    from rlhf_cli.cluster.job_page import job_page
    from rlhf_cli.cluster.jobs import find_job
    from rlhf_cli.cluster.pods import list_pods, pods_text, ray_cluster_text
    from rlhf_cli.console import page_console

    cluster = connect_cluster(kubeconfig, context, namespace)
    job, now = find_job(cluster, name), datetime.now(UTC)
    page_console().print(job_page(job, now))
    typer.echo("\nCluster")
    typer.echo(ray_cluster_text(cluster, job), nl=False)
    typer.echo("\nPods")
    typer.echo(pods_text(list_pods(cluster, job), now), nl=False)
    typer.echo("\nEvents")
    typer.echo(events_table(list_events(cluster, job), now), nl=False)
