"""Why a pod does not run, in words. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlhf_cli.cluster.client import Object

STARTING = ("ContainerCreating", "PodInitializing")
"""Reasons of waiting that are no problem."""
HOPELESS = (
    "ErrImagePull",
    "ImagePullBackOff",
    "ErrImageNeverPull",
    "InvalidImageName",
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
)
"""Reasons of waiting that seldom go away without help."""


def pod_problems(pod: Object) -> list[str]:
    """Everything that keeps a pod from running, or ended it; empty if nothing does."""
    status = pod.get("status") or {}
    found = [*_own(status)]
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        found += _of_container(each)
    return list(dict.fromkeys(found))


def is_hopeless(pod: Object) -> bool:
    """Whether waiting any longer for it to start is most likely in vain."""
    status = pod.get("status") or {}
    if status.get("phase") in ("Failed", "Succeeded"):
        return True
    containers = status.get("containerStatuses", ())
    reasons = [
        ((each.get("state") or {}).get("waiting") or {}).get("reason") for each in containers
    ]
    return any(reason in HOPELESS for reason in reasons)


def is_running(pod: Object) -> bool:
    """Whether commands can be run in it."""
    status = pod.get("status") or {}
    containers = status.get("containerStatuses", ())
    if "deletionTimestamp" in pod["metadata"] or not containers:
        return False
    return all("running" in (each.get("state") or {}) for each in containers)


def _own(status: Any) -> Iterator[str]:
    for condition in status.get("conditions", ()):
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            yield f"{condition.get('reason', 'Unschedulable')}: {condition.get('message', '')}"
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            yield f"{condition.get('reason', 'Disrupted')}: {condition.get('message', '')}"
    if status.get("phase") == "Failed" and status.get("reason"):
        yield f"{status['reason']}: {status.get('message', '')}"


def _of_container(status: Any) -> Iterator[str]:
    name, state = status["name"], status.get("state") or {}
    waiting = state.get("waiting") or {}
    if waiting.get("reason") and waiting["reason"] not in STARTING:
        message = waiting.get("message", "")
        yield f"container {name}: {waiting['reason']}" + (f": {message}" if message else "")
    for ended in (state.get("terminated"), (status.get("lastState") or {}).get("terminated")):
        if ended and (ended.get("exitCode", 0) != 0 or ended.get("reason") == "OOMKilled"):
            reason = ended.get("reason", "Error")
            yield f"container {name}: {reason}, exit code {ended.get('exitCode')}"
