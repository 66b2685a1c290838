"""`rlhf describe`: a job's status, its pods with what keeps them from running, and the events."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime

import typer

from rlhf_cli.cluster.ages import age
from rlhf_cli.cluster.client import Cluster, Object
from rlhf_cli.cluster.console import console
from rlhf_cli.cluster.errors import ObjectNotFound
from rlhf_cli.cluster.events import events_of, events_table
from rlhf_cli.cluster.job_page import job_page
from rlhf_cli.cluster.jobs import Job, find_job
from rlhf_cli.cluster.jobs_table import aligned
from rlhf_cli.cluster.pod_problems import pod_problems
from rlhf_kube.kinds import Kind


def describe_command(cluster: Cluster, name: str) -> None:
    """Print everything that the cluster tells about a job."""
    job, now = find_job(cluster, name), datetime.now(UTC)
    console().print(job_page(job, now))
    typer.echo("\nCluster")
    typer.echo(_cluster_text(cluster, job), nl=False)
    typer.echo("\nPods")
    typer.echo(pods_text(pods_of(cluster, job), now), nl=False)
    typer.echo("\nEvents")
    typer.echo(events_table(events_of(cluster, job), now), nl=False)


def pods_of(cluster: Cluster, job: Job) -> list[Object]:
    """The pods of the cluster that a job has now."""
    if job.status.cluster is None:
        return []
    labels = f"ray.io/cluster={job.status.cluster.name}"
    found = cluster.list(Kind.POD, job.namespace, labels=labels).items
    return sorted(found, key=lambda pod: str(pod["metadata"]["name"]))


def pods_text(pods: Sequence[Object], now: datetime) -> str:
    """A line for each pod, and below it what keeps it from running."""
    if not pods:
        return "No pods.\n"
    head = ("NAME", "PHASE", "READY", "NODE", "AGE")
    lines = aligned([head, *(_cells(pod, now) for pod in pods)]).splitlines(keepends=True)
    text = lines[0]
    for line, pod in zip(lines[1:], pods, strict=True):
        text += line + "".join(f"  {problem}\n" for problem in pod_problems(pod))
    return text


def _cells(pod: Object, now: datetime) -> tuple[str, ...]:
    meta, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses", ())
    ready = sum(bool(each.get("ready")) for each in containers)
    return (
        meta["name"],
        "Terminating" if "deletionTimestamp" in meta else status.get("phase", "Pending"),
        f"{ready}/{len(pod['spec']['containers'])}",
        pod["spec"].get("nodeName") or "-",
        age(datetime.fromisoformat(meta["creationTimestamp"]), now),
    )


def _cluster_text(cluster: Cluster, job: Job) -> str:
    if job.status.cluster is None:
        return "None: the job holds no devices now.\n"
    name = job.status.cluster.name
    found: Object = {}
    with suppress(ObjectNotFound):
        found = cluster.get(Kind.CLUSTER, job.namespace, name)
    if not found:
        return f"RayCluster {name} is gone; the operator makes it anew.\n"
    status = found.get("status") or {}
    ready, desired = (status.get(f"{each}WorkerReplicas", 0) for each in ("ready", "desired"))
    lines = [f"RayCluster {name}: {ready} of {desired} workers ready"]
    if found["spec"].get("suspend"):
        lines.append("  suspended, as by a queue that has no room for it")
    for condition in status.get("conditions", ()):
        words = condition.get("message") or condition.get("reason", "")
        lines.append(f"  {condition['type']} {condition['status']}: {words}")
    return "\n".join(lines) + "\n"
