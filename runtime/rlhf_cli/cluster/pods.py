"""A job's RayCluster and pods: their state, and reasons why a pod does not run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any

from rlhf_cli.cluster.job_text import age, align_columns
from rlhf_cli.cluster.jobs import Job
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Cluster, Manifest

STARTING = ("ContainerCreating", "PodInitializing")
"""Waiting reasons of a normal start."""
STUCK_REASONS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
"""Waiting reasons that seldom resolve without a change."""


def pod_problems(pod: Manifest) -> list[str]:
    """Everything that keeps a pod from running, or ended it."""
    status = pod.get("status") or {}
    problems = [*_pod_problems(status)]
    containers = (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ()))
    for container in containers:
        problems += _container_problems(container)
    return list(dict.fromkeys(problems))


def is_stuck(pod: Manifest) -> bool:
    """True if the pod will most likely never start."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    containers = status.get("containerStatuses", ())
    reasons = [
        ((container.get("state") or {}).get("waiting") or {}).get("reason")
        for container in containers
    ]
    return any(reason in STUCK_REASONS for reason in reasons)


def is_running(pod: Manifest) -> bool:
    """True if commands can run in all its containers."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses", ())
    # A pod that is being deleted still runs, but a command in it would be cut off.
    if "deletionTimestamp" in pod["metadata"] or not containers:
        return False
    return all("running" in (container.get("state") or {}) for container in containers)


def _pod_problems(status: Any) -> Iterator[str]:
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            yield f"{condition.get('reason', 'Disrupted')}: {condition.get('message', '')}"
    if status.get("phase") == "Failed" and status.get("reason"):
        yield f"{status['reason']}: {status.get('message', '')}"


def _container_problems(status: Any) -> Iterator[str]:
    name, state = status["name"], status.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in STARTING:
        message = waiting.get("message", "")
        yield f"container {name}: {waiting['reason']}" + (f": {message}" if message else "")
    # A container that was restarted shows the reason of its last end only in lastState.
    for ended in (state.get("terminated"), (status.get("lastState") or {}).get("terminated")):
        if ended and (ended.get("exitCode", 0) != 0 or ended.get("reason") == "OOMKilled"):
            reason = ended.get("reason", "Error")
            yield f"container {name}: {reason}, exit code {ended.get('exitCode')}"


def list_pods(cluster: Cluster, job: Job) -> list[Manifest]:
    """The pods of the job's current RayCluster, by name."""
    if job.status.cluster is None:
        return []
    labels = f"ray.io/cluster={job.status.cluster.name}"
    pods = cluster.list(Kind.POD, job.namespace, labels=labels)
    return sorted(pods, key=lambda pod: str(pod["metadata"]["name"]))


def pods_text(pods: Sequence[Manifest], now: datetime) -> str:
    """A line for each pod, followed by its problems."""
    if not pods:
        return "No pods.\n"
    head = ("NAME", "PHASE", "READY", "NODE", "AGE")
    lines = align_columns([head, *(_cells(pod, now) for pod in pods)]).splitlines(keepends=True)
    text = lines[0]
    for line, pod in zip(lines[1:], pods, strict=True):
        text += line + "".join(f"  {problem}\n" for problem in pod_problems(pod))
    return text


def _cells(pod: Manifest, now: datetime) -> tuple[str, ...]:
    meta, status = pod["metadata"], pod.get("status") or {}
    containers = status.get("containerStatuses", ())
    ready = sum(bool(container.get("ready")) for container in containers)
    return (
        meta["name"],
        "Terminating" if "deletionTimestamp" in meta else status.get("phase", "Pending"),
        f"{ready}/{len(pod['spec']['containers'])}",
        pod["spec"].get("nodeName") or "-",
        age(datetime.fromisoformat(meta["creationTimestamp"]), now),
    )


def ray_cluster_text(cluster: Cluster, job: Job) -> str:
    """The state of the job's RayCluster, on one line or more."""
    if job.status.cluster is None:
        return "None: the job uses no devices now.\n"
    name = job.status.cluster.name
    document = cluster.get(Kind.CLUSTER, job.namespace, name)
    if document is None:
        return f"RayCluster {name} does not exist; the operator creates it again.\n"
    status = document.get("status") or {}
    ready, desired = (status.get(f"{count}WorkerReplicas", 0) for count in ("ready", "desired"))
    lines = [f"RayCluster {name}: {ready} of {desired} workers ready"]
    if document["spec"].get("suspend"):
        lines.append("  suspended, for example by a queue without free capacity")
    for condition in status.get("conditions", ()):
        words = condition.get("message") or condition.get("reason", "")
        lines.append(f"  {condition['type']} {condition['status']}: {words}")
    return "\n".join(lines) + "\n"
