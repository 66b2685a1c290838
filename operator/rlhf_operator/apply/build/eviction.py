"""Protection of a job's pods from drains and autoscalers, if the job asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_api.spec.job import RLHFJob
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.build.owner import Owner
from rlhf_operator.decide.node_pools import num_pods

NOT_EVICTABLE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations that keep autoscalers from removing a pod's node."""


def eviction_annotations(job: RLHFJob) -> Mapping[str, str]:
    """Return the annotations of all pods of a job."""
    return {} if job.spec.resources.evictable else NOT_EVICTABLE


def disruption_budget(owner: Owner, job: RLHFJob, name: str, uid: str) -> Mapping[str, Any]:
    """Return a PodDisruptionBudget that allows no eviction of a RayCluster's pods.

    Kubernetes deletes it with the RayCluster, which owns it.

    Args:
        job: as its cluster runs it.
        name: of the RayCluster.
        uid: of the RayCluster.
    """
    owned_by = {**Kind.CLUSTER.header, "name": name, "uid": uid}
    labels = {**owner.labels, "ray.io/cluster": name}
    return {
        **Kind.BUDGET.header,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": owner.labels,
            "ownerReferences": [{**owned_by, "controller": True}],
        },
        "spec": {
            # For a kind without a scale, such as RayCluster, only a number of pods can be given.
            "minAvailable": num_pods(job),
            "selector": {"matchLabels": labels},
            # A pod that does not become ready may go: it holds up the drain for nothing.
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
