"""Kueue holds RayClusters back until its quota has room for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ..waiting import wait_until
from .devcluster import CommandFailed
from .kubectl import Kubectl
from .queues import PRIORITY_LABEL, QUEUE_LABEL, queue_objects, require_kueue, used_gpus
from .test_control_plane import ray_cluster

pytestmark = pytest.mark.cluster


@pytest.fixture
def queue(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """The namespace of a queue with 8 GPUs."""
    require_kueue(kubectl)
    objects = queue_objects(namespace, num_gpus=8)
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    kubectl("create", "--filename=-", stdin=manifest)
    kubectl.wait(namespace, "condition=Active", "localqueue/queue")
    yield namespace
    kubectl("delete", "--namespace", namespace, "rayclusters", "--all")
    kubectl("delete", "--filename=-", "--wait=false", stdin=manifest)


def queued(name: str, **labels: str) -> dict[str, Any]:
    """A RayCluster of all 8 GPUs."""
    manifest = ray_cluster(name, num_workers=1)
    manifest["metadata"]["labels"] = {QUEUE_LABEL: "queue", **labels}
    return manifest


def wait_ready(kubectl: Kubectl, namespace: str, name: str) -> None:
    kubectl.wait(namespace, "jsonpath={.status.state}=ready", f"raycluster/{name}")


def wait_held_back(kubectl: Kubectl, namespace: str, name: str) -> None:
    """Until it is suspended and its workload has no quota."""

    def without_quota() -> bool:
        workloads = kubectl.get(namespace, "workloads")["items"]
        return any(
            condition["type"] == "QuotaReserved" and condition["status"] == "False"
            for workload in workloads
            if workload["metadata"]["ownerReferences"][0]["name"] == name
            for condition in workload.get("status", {}).get("conditions", [])
        )

    wait_until(without_quota, seconds=60, what=f"{name} waits for quota")
    kubectl.wait(namespace, "jsonpath={.spec.suspend}=true", f"raycluster/{name}")
    selector = f"--selector=ray.io/cluster={name}"
    kubectl("wait", f"--namespace={namespace}", "--for=delete", "pod", selector, "--timeout=60s")
    assert kubectl.get(namespace, "pods", selector)["items"] == []


def test_a_second_cluster_waits_until_the_first_gives_its_quota_back(
    kubectl: Kubectl, queue: str
) -> None:
    kubectl.apply(queue, queued("first"))
    wait_ready(kubectl, queue, "first")
    assert used_gpus(kubectl, queue) == 8
    kubectl.apply(queue, queued("second"))
    wait_held_back(kubectl, queue, "second")

    kubectl("delete", f"--namespace={queue}", "raycluster/first")
    wait_ready(kubectl, queue, "second")
    kubectl("delete", f"--namespace={queue}", "raycluster/second")
    wait_until(lambda: used_gpus(kubectl, queue) == 0, seconds=60, what="the quota is back")


def test_an_urgent_cluster_evicts_one_that_runs_and_gives_way_again(
    kubectl: Kubectl, queue: str
) -> None:
    kubectl.apply(queue, queued("usual"))
    wait_ready(kubectl, queue, "usual")
    kubectl.apply(queue, queued("urgent", **{PRIORITY_LABEL: f"{queue}-urgent"}))
    wait_ready(kubectl, queue, "urgent")
    wait_held_back(kubectl, queue, "usual")

    kubectl("delete", f"--namespace={queue}", "raycluster/urgent")
    wait_ready(kubectl, queue, "usual")


def test_a_cluster_without_a_queue_is_left_alone(kubectl: Kubectl, queue: str) -> None:
    kubectl.apply(queue, ray_cluster("free", num_workers=1))
    wait_ready(kubectl, queue, "free")
    assert used_gpus(kubectl, queue) == 0
    assert kubectl.get(queue, "workloads")["items"] == []


def test_what_a_running_cluster_asks_for_may_not_change(kubectl: Kubectl, queue: str) -> None:
    kubectl.apply(queue, queued("first"))
    wait_ready(kubectl, queue, "first")
    with pytest.raises(CommandFailed, match="field is immutable"):
        kubectl.apply(queue, queued("first", **{QUEUE_LABEL: "another"}))
