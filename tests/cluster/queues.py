"""Kueue's objects for tests: a queue with a quota of GPUs, and what waits in it."""

from __future__ import annotations

from typing import Any

from .kubectl import Kubectl
from .programs import built
from .session import skip_or_fail

API = "kueue.x-k8s.io/v1beta2"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"


def require_kueue(kubectl: Kubectl) -> None:
    """Skip the test where the cluster has no Kueue, and say how it gets one; in CI fail."""
    if API not in kubectl("api-versions").split():
        built("kueue")
        skip_or_fail("the cluster has no Kueue: start it with --kueue")


def queue_objects(namespace: str, num_gpus: int) -> list[dict[str, Any]]:
    """A local queue named `queue` over a quota of its own; more urgent work evicts less urgent."""
    quotas = {"cpu": "1000", "memory": "10Ti", "nvidia.com/gpu": str(num_gpus)}
    resources = [{"name": name, "nominalQuota": quota} for name, quota in quotas.items()]
    own = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return [
        {"apiVersion": API, "kind": "ResourceFlavor", "metadata": {"name": namespace}},
        {
            "apiVersion": API,
            "kind": "ClusterQueue",
            "metadata": {"name": namespace},
            "spec": {
                "namespaceSelector": own,
                "preemption": {"withinClusterQueue": "LowerPriority"},
                "resourceGroups": [
                    {
                        "coveredResources": [*quotas],
                        "flavors": [{"name": namespace, "resources": resources}],
                    }
                ],
            },
        },
        {
            "apiVersion": API,
            "kind": "LocalQueue",
            "metadata": {"name": "queue", "namespace": namespace},
            "spec": {"clusterQueue": namespace},
        },
        {
            "apiVersion": API,
            "kind": "WorkloadPriorityClass",
            "metadata": {"name": f"{namespace}-urgent"},
            "value": 1000,
        },
    ]


def used_gpus(kubectl: Kubectl, namespace: str) -> int:
    """GPUs of the namespace's quota that are given out."""
    queue = kubectl.get("default", f"clusterqueue/{namespace}")
    (flavor,) = queue["status"]["flavorsUsage"]
    (gpus,) = (each for each in flavor["resources"] if each["name"] == "nvidia.com/gpu")
    return int(gpus["total"])
