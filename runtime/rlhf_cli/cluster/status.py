"""`rlhf status`: jobs as a table, one as a page, or either as it changes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import typer
import yaml

from rlhf_cli.cluster.client import Cluster, Object
from rlhf_cli.cluster.console import console
from rlhf_cli.cluster.job_page import job_page
from rlhf_cli.cluster.jobs import find_job, plain_name, read_job
from rlhf_cli.cluster.jobs_table import jobs_table
from rlhf_cli.cluster.watching import display, wait_for_end, watch_jobs, worst
from rlhf_kube.kinds import Kind


def status_command(
    cluster: Cluster, name: str | None, output: str | None, watch: bool, everywhere: bool
) -> None:
    """Print the status of one job, or of all.

    Args:
        output: json, yaml or name; None: for people.
        watch: show changes, of one job until it has ended.
        everywhere: the jobs of all namespaces.

    Raises:
        typer.Exit: a watched job has ended; with its exit code.
    """
    if watch and name is not None:
        watch_job(cluster, plain_name(name))
    elif watch:
        watch_jobs(cluster, None if everywhere else cluster.namespace)
    elif name is not None:
        job = find_job(cluster, name)
        if output is None:
            console().print(job_page(job, datetime.now(UTC)))
        else:
            typer.echo(written(job.document, output), nl=False)
    else:
        _print_all(cluster, output, everywhere)


def watch_job(cluster: Cluster, name: str) -> None:
    """Show a job until it has ended, and end as it did."""
    with display() as shown:
        jobs = wait_for_end(cluster, cluster.namespace, [name], shown)
    raise typer.Exit(worst(jobs.values()))


def _print_all(cluster: Cluster, output: str | None, everywhere: bool) -> None:
    namespace = None if everywhere else cluster.namespace
    items = sorted(cluster.list(Kind.JOB, namespace).items, key=_key)
    if output is not None:
        typer.echo(written_list(items, output), nl=False)
    elif items:
        jobs = [read_job(each) for each in items]
        typer.echo(jobs_table(jobs, datetime.now(UTC), with_namespaces=everywhere), nl=False)
    else:
        place = "any namespace" if everywhere else f"namespace {cluster.namespace}"
        typer.echo(f"No jobs in {place}.", err=True)


def _key(document: Object) -> tuple[str, str]:
    return document["metadata"]["namespace"], document["metadata"]["name"]


def written(document: Object, output: str) -> str:
    """An object as json, as yaml, or by its name as `kubectl get -o name` writes it."""
    if output == "name":
        return f"{Kind.JOB.kind.lower()}.{Kind.JOB.api_version.partition('/')[0]}/" + (
            f"{document['metadata']['name']}\n"
        )
    plain = json.loads(json.dumps(document))
    plain["metadata"].pop("managedFields", None)
    return _text(plain, output)


def written_list(documents: Sequence[Object], output: str) -> str:
    """Objects as one list, or by a name on each line."""
    if output == "name":
        return "".join(written(each, output) for each in documents)
    items = [json.loads(written(each, "json")) for each in documents]
    return _text({"apiVersion": "v1", "kind": "List", "items": items}, output)


def _text(document: Object, output: str) -> str:
    if output == "json":
        return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text
