"""The RayCluster of a job: a head for the driver, and a group of workers for each node pool."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_api.on_cluster import (
    AGENT_GRPC_PORT,
    AGENT_PORT,
    HEAD_CPUS,
    RUNTIME_ENV_AGENT_PORT,
    cluster_name,
    ray_cpus,
    ray_gpus,
    ray_resources,
)
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import NodePool
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.apply.build.pods import head_pod, worker_pod
from rlhf_operator.decide.node_pools import cluster_pools

RAY_VERSION = "2.58.0"
"""Version in the runtime's image."""
HEAD_STORE_BYTES = 200_000_000
"""Small: batches are on the workers, the head has references only."""
START_PARAMETERS = {
    "dashboard-agent-listen-port": str(AGENT_PORT),
    "dashboard-agent-grpc-port": str(AGENT_GRPC_PORT),
    "runtime-env-agent-port": str(RUNTIME_ENV_AGENT_PORT),
    # The driver reads the workers' logs itself. KubeRay leaves an option out if it is "false".
    "include-log-monitor": "0",
}
"""Parameters of `ray start` on every node."""
PRIVATE_DOMAINS = ("kubectl.kubernetes.io", "kopf.zalando.org")
"""Domains of annotations that concern only the RLHFJob itself."""
RAY_DOMAIN = "ray.io"
RAY_NAMES = (
    "ray.io/gang-scheduling-enabled",
    "ray.io/priority-class-name",
    "ray.io/scheduler-name",
)
"""Labels and annotations of Ray's domain that a job may set. KubeRay obeys others, too, such as
ray.io/overwrite-container-cmd, which decides by which command a pod starts."""


def ray_cluster(
    owner: Owner,
    job: RLHFJob,
    attempt: int,
    manifest: str,
    auth_secret: str,
    identity_annotations: Mapping[str, str],
) -> Mapping[str, Any]:
    """Return the job's RayCluster, with the job's labels and annotations.

    Args:
        manifest: name of the ConfigMap with the manifest.
        auth_secret: name of the Secret with the token.
        identity_annotations: identify the operator that creates it.
    """
    # Queues, topology and gang scheduling read the labels and annotations of the RayCluster.
    metadata = job.metadata
    annotations = {**_passed_on(metadata.annotations), **identity_annotations}
    own = owner.metadata(cluster_name(owner.name, attempt), annotations=annotations)
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        # Own labels win: the operator selects its objects by them.
        "metadata": {**own, "labels": {**_passed_on(metadata.labels), **own["labels"]}},
        "spec": {
            "rayVersion": RAY_VERSION,
            # The plan is made for exactly these workers.
            "enableInTreeAutoscaling": False,
            "authOptions": {"mode": "token", "secretName": auth_secret},
            "headGroupSpec": {
                "serviceType": "ClusterIP",
                "rayStartParams": {
                    **START_PARAMETERS,
                    "num-cpus": str(HEAD_CPUS),
                    # No work of the job runs on the head, even if its node has GPUs.
                    "num-gpus": "0",
                    # Ray's default accepts connections of its own pod only.
                    "dashboard-host": "0.0.0.0",
                    "no-monitor": "true",  # nothing is scaled automatically
                    "object-store-memory": str(HEAD_STORE_BYTES),
                },
                "template": head_pod(owner, job, manifest),
            },
            "workerGroupSpecs": [_group(owner, job, pool, manifest) for pool in cluster_pools(job)],
        },
    }


def _passed_on(entries: Mapping[str, str]) -> Mapping[str, str]:
    """Return the labels or annotations of a job that its RayCluster gets."""
    return {name: value for name, value in entries.items() if _is_passed_on(name)}


def _is_passed_on(name: str) -> bool:
    domain, slash, _ = name.rpartition("/")
    is_of_ray = domain == RAY_DOMAIN or domain.endswith(f".{RAY_DOMAIN}")
    return name in RAY_NAMES or not slash or not (is_of_ray or domain in PRIVATE_DOMAINS)


def _group(owner: Owner, job: RLHFJob, pool: NodePool, manifest: str) -> Mapping[str, Any]:
    return {
        "groupName": pool.name,
        "replicas": pool.nodes,
        "minReplicas": pool.nodes,
        "maxReplicas": pool.nodes,
        "rayStartParams": {
            **START_PARAMETERS,
            "num-cpus": str(ray_cpus(pool)),
            "num-gpus": str(ray_gpus(pool)),
            "resources": ray_resources(pool),
        },
        "template": worker_pod(owner, job, pool, manifest),
    }
