"""The RayCluster of a job: a head for the driver, and a group of workers for each node pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_api.job import RLHFJob
from rlhf_api.on_cluster import cluster_name
from rlhf_api.resources import Device
from rlhf_operator.build.groups import WorkerGroup, worker_groups
from rlhf_operator.build.owned import Owner
from rlhf_operator.build.pods import head_pod, worker_pod

RAY_VERSION = "2.58.0"
"""What the runtime's image has."""
HOSTS = 2
"""Processes beside the ranks: data and rewards."""
NOT_PASSED_ON = ("kubectl.kubernetes.io/", "kopf.zalando.org/")
"""How annotations begin that are about the RLHFJob itself."""


def ray_cluster(owner: Owner, job: RLHFJob, attempt: int) -> Mapping[str, Any]:
    """The job's cluster; labels and annotations of the job are passed on to it: queues, topology
    and gang scheduling go by them."""
    metadata = job.metadata
    annotations = {
        name: value
        for name, value in metadata.annotations.items()
        if not name.startswith(NOT_PASSED_ON)
    }
    own = owner.metadata(cluster_name(owner.name, attempt), annotations=annotations)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {**own, "labels": {**metadata.labels, **own["labels"]}},
        "spec": {
            "rayVersion": RAY_VERSION,
            "enableInTreeAutoscaling": False,
            "authOptions": {"mode": "token", "secretName": owner.children},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {
                    "num-cpus": "0",
                    "num-gpus": "0",
                    "dashboard-host": "0.0.0.0",
                },
                "template": head_pod(owner, job),
            },
            "workerGroupSpecs": [_group(owner, job, group) for group in worker_groups(job)],
        },
    }


def ray_cpus(group: WorkerGroup) -> int:
    """What a worker offers to Ray: a slot for each rank, and for the hosts of data and rewards."""
    return group.devices_per_node + HOSTS


def _group(owner: Owner, job: RLHFJob, group: WorkerGroup) -> Mapping[str, Any]:
    gpus = group.devices_per_node if group.pool.device is Device.GPU else 0
    return {
        "groupName": group.pool.name,
        "replicas": group.nodes,
        "minReplicas": group.nodes,
        "maxReplicas": group.nodes,
        "rayStartParams": {"num-cpus": str(ray_cpus(group)), "num-gpus": str(gpus)},
        "template": worker_pod(owner, job, group),
    }
