"""Requests and limits of the containers of a pod.

A quota of the namespace may require a limit of every container, so init containers have those that
the pod has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_api.quantity import quantity_amount
from rlhf_api.spec.pod.resources import ContainerResources
from rlhf_api.spec.resources import PodResources

STORAGE = "ephemeral-storage"


def container_resources(
    pod: PodResources, further: ContainerResources, devices: Mapping[str, str]
) -> Mapping[str, Any]:
    """Return the resources of the main container, which has the devices.

    Args:
        pod: amounts by our own fields.
        further: other amounts, by Kubernetes' names.
        devices: amounts of devices.
    """
    # Memory is limited to the request, so that a pod with too much of it harms only itself. Cores
    # are not limited unless the job says so: a pod may use idle ones.
    memory = {} if pod.memory is None else {"memory": pod.memory}
    cpu = {} if pod.cpu is None else {"cpu": pod.cpu}
    cpu_limit = {} if pod.cpu_limit is None else {"cpu": pod.cpu_limit}
    storage = _storage(pod)
    return {
        "requests": {**further.requests, **cpu, **memory, **storage, **devices},
        "limits": {**further.limits, **cpu_limit, **memory, **storage, **devices},
    }


def with_limits(pod: PodResources, further: ContainerResources) -> PodResources:
    """Return the amounts of a pod with the limits that its init containers copy."""
    limits = further.limits
    update = {
        "cpu_limit": pod.cpu_limit or limits.get("cpu"),
        "ephemeral_storage": pod.ephemeral_storage or limits.get(STORAGE),
    }
    return pod.model_copy(update=update)


def init_container_resources(
    pod: PodResources, cpu: str, memory: str, memory_limit: str
) -> Mapping[str, Any]:
    """Return the resources of an init container, with the limits of its pod.

    Args:
        pod: of the main container.
        cpu: requested cores.
        memory: requested memory.
        memory_limit: upper bound of memory.
    """
    storage = _storage(pod)
    limits = {"memory": memory_limit, **storage}
    if pod.cpu_limit is not None:
        # A request must not exceed its limit.
        limits["cpu"] = max(pod.cpu_limit, cpu, key=quantity_amount)
    return {"requests": {"cpu": cpu, "memory": memory, **storage}, "limits": limits}


def _storage(pod: PodResources) -> Mapping[str, str]:
    return {} if pod.ephemeral_storage is None else {STORAGE: pod.ephemeral_storage}
