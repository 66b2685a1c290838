"""The real node runs containers that reach the API server and each other, and counts its GPUs."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from ..cluster.devcluster import SCRIPTS, DevCluster
from ..cluster.kubectl import Kubectl

pytestmark = pytest.mark.e2e
IMAGE = "localhost/kubectl:1"


@pytest.fixture(scope="module")
def node(node_cluster: DevCluster, kubectl: Kubectl) -> str:
    """The real node's name; its containerd has an image of kubectl."""
    make = [str(SCRIPTS / "node" / "one-file-image.py"), str(kubectl.program.resolve()), IMAGE]
    image = subprocess.run(make, capture_output=True, check=True).stdout
    socket = str(node_cluster.state / "containerd.sock")
    load = ["ctr", "--address", socket, "--namespace", "k8s.io", "images", "import", "-"]
    subprocess.run(load, input=image, stdout=subprocess.DEVNULL, check=True)
    return kubectl("get", "nodes", "--selector=type!=kwok", "--output=name").strip()


def pod(name: str, *arguments: str, **spec: Any) -> dict[str, Any]:
    """A pod that runs kubectl."""
    container = {"name": "main", "image": IMAGE, "imagePullPolicy": "Never", "args": arguments}
    container |= spec
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }


def printed_by(kubectl: Kubectl, namespace: str, manifest: dict[str, Any]) -> str:
    """What a pod prints that runs to its end."""
    name = f"pod/{manifest['metadata']['name']}"
    kubectl.apply(namespace, manifest)
    kubectl.wait(namespace, "jsonpath={.status.phase}=Succeeded", name)
    return kubectl("logs", f"--namespace={namespace}", name)


@pytest.mark.usefixtures("node")
@pytest.mark.parametrize("address", ["10.96.0.1", "kubernetes.default.svc"])
def test_a_pod_reaches_the_api_server_as_its_service_account(
    kubectl: Kubectl, namespace: str, address: str
) -> None:
    environment = [{"name": "KUBERNETES_SERVICE_HOST", "value": address}]
    said = printed_by(kubectl, namespace, pod("who", "auth", "whoami", env=environment))
    assert f"system:serviceaccount:{namespace}:default" in said


@pytest.mark.usefixtures("node")
def test_a_pod_reaches_another_by_the_name_of_its_service(kubectl: Kubectl, namespace: str) -> None:
    probe = {"tcpSocket": {"port": 8001}, "periodSeconds": 1}
    serve = ("proxy", "--address=0.0.0.0", "--accept-hosts=.*")
    kubectl.apply(namespace, pod("server", *serve, readinessProbe=probe))
    kubectl("expose", f"--namespace={namespace}", "pod/server", "--port=80", "--target-port=8001")
    kubectl.wait(namespace, "condition=Ready", "pod/server")
    ask = pod("client", "--server=http://server", "get", "--raw", "/version")
    ask["spec"]["restartPolicy"] = "OnFailure"  # nodes learn of a Service's pods a moment later
    assert '"gitVersion"' in printed_by(kubectl, namespace, ask)


@pytest.mark.usefixtures("node")
def test_a_command_runs_in_a_running_container(kubectl: Kubectl, namespace: str) -> None:
    kubectl.apply(namespace, pod("server", "proxy"))
    kubectl.wait(namespace, "condition=Ready", "pod/server")
    said = kubectl(
        "exec", f"--namespace={namespace}", "server", "--", "/kubectl", "version", "--client"
    )
    assert "Client Version" in said


def test_the_nodes_gpus_are_counted(kubectl: Kubectl, namespace: str, node: str) -> None:
    gpus = kubectl.get(namespace, node)["status"]["allocatable"]["nvidia.com/gpu"]
    assert gpus == "2"
    for name in ("first", "second"):
        limits = {"limits": {"nvidia.com/gpu": gpus}}
        kubectl.apply(namespace, pod(name, "proxy", resources=limits))
    kubectl.wait(namespace, "condition=PodScheduled=False", "pod/second")
    kubectl.wait(namespace, "condition=Ready", "pod/first")
    (condition,) = kubectl.get(namespace, "pod/second")["status"]["conditions"]
    assert "Insufficient nvidia.com/gpu" in condition["message"]
