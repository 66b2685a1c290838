"""`rlhf check-downgrade`."""

from __future__ import annotations

from typing import Annotated

import typer

from rlhf_cli.options import Context, Kubeconfig, Namespace, connect_cluster


def check_downgrade(
    file: Annotated[
        typer.FileText,
        typer.Argument(
            metavar="FILE",
            errors="replace",
            help="The older release's definition, or all of its manifests; - is standard input.",
        ),
    ],
    all_namespaces: Annotated[
        bool, typer.Option("--all-namespaces", "-A", help="Check the jobs of all namespaces.")
    ] = False,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
    namespace: Namespace = None,
) -> None:
    """Show what jobs would lose under an older release's definition.

    Reads the jobs that have not ended, and changes nothing. Exits with 2 if a job uses a field or
    a value that the older definition lacks.

    \b
    Examples:
      helm template rlhf-operator OLDER_CHART | rlhf check-downgrade - -A
      rlhf check-downgrade older-rlhfjobs.yaml -n team-a
    """
    from rlhf_api.exits import ExitCode
    from rlhf_cli.cluster.jobs import read_job
    from rlhf_cli.cluster.older_definition import lost_fields, read_definition
    from rlhf_kube.kinds import Kind

    schema = read_definition(file.read(), file.name)
    cluster = connect_cluster(kubeconfig, context, namespace)
    jobs = map(read_job, cluster.list(Kind.JOB, None if all_namespaces else cluster.namespace))
    live = [job for job in jobs if not job.has_ended]
    num_losing = 0
    for job in live:
        lost = lost_fields(schema, job)
        num_losing += bool(lost)
        for field in lost:
            typer.echo(f"{job.namespace}/{job.name}: {field.path}: {field.problem}")
    if num_losing:
        typer.echo(
            f"{num_losing} of {len(live)} jobs that have not ended would lose these fields when "
            "they, or their status, are next written; wait for their end, or keep their manifests "
            "and apply them again after the next upgrade"
        )
        raise typer.Exit(ExitCode.MANIFEST)
    typer.echo(f"none of {len(live)} jobs that have not ended would lose a field")
