"""The session's cluster does what operators need: objects, KubeRay, GPUs that are counted."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ..waiting import wait_until
from .devcluster import SCRIPTS
from .kubectl import Kubectl
from .session import skip_or_fail

pytestmark = pytest.mark.cluster

FAKE_NODES = {
    "nodeSelector": {"type": "kwok"},
    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
}
"""Where no container runs; beside a real node the fake ones are tainted."""


def pod_spec(num_gpus: int) -> dict[str, Any]:
    limits = {"cpu": "4", "memory": "16Gi", "nvidia.com/gpu": str(num_gpus)}
    container = {"name": "main", "image": "localhost/none:1", "resources": {"limits": limits}}
    return {**FAKE_NODES, "containers": [container]}


def pod(name: str, num_gpus: int) -> dict[str, Any]:
    metadata = {"name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod_spec(num_gpus)}


def ray_cluster(name: str, num_workers: int) -> dict[str, Any]:
    workers = {
        "groupName": "gpu",
        "replicas": num_workers,
        "minReplicas": num_workers,
        "maxReplicas": num_workers,
        "rayStartParams": {},
        "template": {"spec": pod_spec(num_gpus=8)},
    }
    head = {"rayStartParams": {"num-cpus": "0"}, "template": {"spec": pod_spec(num_gpus=0)}}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"rayVersion": "2.58.0", "headGroupSpec": head, "workerGroupSpecs": [workers]},
    }


@pytest.fixture
def fake_nodes(kubectl: Kubectl) -> None:
    if len(kubectl("get", "nodes", "--selector=type=kwok", "--output=name").split()) < 2:
        skip_or_fail("the cluster has no two fake nodes: start it with --fake-nodes 2")


def test_the_api_server_is_of_the_pinned_version(kubectl: Kubectl, kubeconfig: Path) -> None:
    if not (kubeconfig.parent / "arguments").exists():
        pytest.skip("RLHF_TEST_KUBECONFIG names a cluster that cluster-up has not made")
    pins = (SCRIPTS / "modules" / "kubernetes" / "go.mod").read_text()
    (pinned,) = re.findall(r"^(?:require |\t)k8s\.io/kubernetes (v\S+)", pins, re.MULTILINE)
    answered = json.loads(kubectl("get", "--raw", "/version"))["gitVersion"]
    if os.environ.get("KUBEBUILDER_ASSETS"):  # another patch release serves as well
        pinned, answered = pinned.rpartition(".")[0], answered.rpartition(".")[0]
    assert answered == pinned


@pytest.mark.usefixtures("fake_nodes")
def test_kuberay_makes_the_pods_and_the_service_of_a_ray_cluster(
    kubectl: Kubectl, namespace: str
) -> None:
    kubectl.apply(namespace, ray_cluster("job", num_workers=2))
    kubectl.wait(namespace, "jsonpath={.status.state}=ready", "raycluster/job")
    pods = kubectl.get(namespace, "pods", "--selector=ray.io/cluster=job")["items"]
    kinds = sorted(pod["metadata"]["labels"]["ray.io/node-type"] for pod in pods)
    assert kinds == ["head", "worker", "worker"]
    service = kubectl.get(namespace, "service/job-head-svc")
    assert {"gcs-server", "dashboard"} <= {port["name"] for port in service["spec"]["ports"]}


def test_kuberay_makes_no_pod_beside_one_that_has_still_to_end(
    kubectl: Kubectl, namespace: str
) -> None:
    """As on a lost node. The operator gives such a cluster up; its tests' world does as KubeRay."""
    cluster = ray_cluster("job", num_workers=2)
    groups = [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]
    for group in groups:  # no kubelet has a hand in this
        group["template"]["spec"]["nodeSelector"] = {"example.com/nowhere": "true"}
    kubectl.apply(namespace, cluster)

    def pods(role: str) -> dict[str, bool]:
        """By name, and whether it was told to end."""
        labels = f"--selector=ray.io/cluster=job,ray.io/node-type={role}"
        found = [each["metadata"] for each in kubectl.get(namespace, "pods", labels)["items"]]
        return {each["name"]: "deletionTimestamp" in each for each in found}

    def hold(pod: str, *finalizers: str) -> None:
        patch = json.dumps({"metadata": {"finalizers": finalizers}})
        words = (f"--namespace={namespace}", "pod", pod, "--type=merge")
        kubectl("patch", *words, f"--patch={patch}")

    def delete(pod: str) -> None:
        kubectl("delete", f"--namespace={namespace}", "pod", pod, "--wait=false")

    wait_until(lambda: len(pods("head")) == 1 and len(pods("worker")) == 2, 60.0, "its pods")
    held = [*pods("head"), next(iter(pods("worker")))]
    gone = next(name for name in pods("worker") if name not in held)
    for name in held:
        hold(name, "test/kubelet")
        delete(name)
    delete(gone)
    wait_until(  # KubeRay has looked at all of them since
        lambda: gone not in (now := pods("worker")) and len(now) == 2, 60.0, "another worker"
    )
    assert pods("head") == {held[0]: True} and pods("worker")[held[1]] is True
    for name in held:  # else the namespace could not end
        hold(name)


@pytest.mark.usefixtures("fake_nodes")
def test_workers_of_whole_nodes_land_on_nodes_of_their_own(
    kubectl: Kubectl, namespace: str
) -> None:
    for name in ("one", "two"):
        kubectl.apply(namespace, pod(name, num_gpus=8))
    kubectl.wait(namespace, "condition=Ready", "pod/one", "pod/two")
    pods = kubectl.get(namespace, "pods")["items"]
    assert {pod["status"]["phase"] for pod in pods} == {"Running"}
    assert len({pod["spec"]["nodeName"] for pod in pods}) == 2


@pytest.mark.usefixtures("fake_nodes")
def test_a_pod_that_wants_more_gpus_than_a_node_has_waits(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(namespace, pod("greedy", num_gpus=9))
    kubectl.wait(namespace, "condition=PodScheduled=False", "pod/greedy")
    (condition,) = kubectl.get(namespace, "pod/greedy")["status"]["conditions"]
    assert condition["reason"] == "Unschedulable"
    assert "Insufficient nvidia.com/gpu" in condition["message"]


@pytest.mark.usefixtures("fake_nodes")
def test_deleting_a_ray_cluster_gives_its_gpus_back(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(namespace, ray_cluster("job", num_workers=1))
    kubectl.wait(namespace, "jsonpath={.status.state}=ready", "raycluster/job")
    kubectl("delete", f"--namespace={namespace}", "raycluster/job")
    selector = "--selector=ray.io/cluster=job"
    kubectl("wait", f"--namespace={namespace}", "--for=delete", "pod", selector, "--timeout=60s")
    assert kubectl.get(namespace, "pods", selector)["items"] == []
