"""The real node runs containers that reach the API server and each other, and counts its GPUs."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from itertools import product
from typing import Any

import pytest

from ..cluster.kubectl import Kubectl
from ..network_policies import Pod, Policy, admitted
from ..waiting import wait_until
from .kubectl_pods import IMAGE, answer, pod

pytestmark = pytest.mark.e2e
PORTS = {"open": 8001, "shut": 8002}
"""Of a server, by their names."""
CLIENTS = ("friend", "stranger")
Connections = AbstractSet[tuple[str, int]]
"""Clients, and ports of the server."""
CONNECTIONS: Connections = set(product(CLIENTS, PORTS.values()))
POLICIES = (
    {
        "podSelector": {"matchLabels": {"app": "server"}},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": {"app": "friend"}}}],
                "ports": [{"port": "open"}],
            }
        ],
    },
    {
        "podSelector": {"matchExpressions": [{"key": "app", "operator": "In", "values": CLIENTS}]},
        "policyTypes": ["Egress"],
        "egress": [{"to": [{"namespaceSelector": {}}], "ports": [{"port": 8002}]}],
    },
)
"""Specs of policies. The second one takes the place of the first."""
ENFORCED_SECONDS = 30


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


def server(name: str, port: int) -> dict[str, Any]:
    """Return a container that answers at a port."""
    serve = ("proxy", "--address=0.0.0.0", "--accept-hosts=.*", f"--port={port}")
    return {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "args": serve,
        "ports": [{"name": name, "containerPort": port}],
        "readinessProbe": {"tcpSocket": {"port": port}, "periodSeconds": 1},
    }


@pytest.mark.usefixtures("node")
def test_network_policies_are_enforced_as_they_are_computed(
    kubectl: Kubectl, namespace: str
) -> None:
    target = pod("server")
    target["spec"]["containers"] = [server(*port) for port in PORTS.items()]
    kubectl.apply(namespace, target)
    for client in CLIENTS:
        kubectl.apply(namespace, pod(client, "proxy"))
    for name in ("server", *CLIENTS):
        kubectl.wait(namespace, "condition=Ready", f"pod/{name}")
    address = kubectl.get(namespace, "pod/server")["status"]["podIP"]

    assert connections(kubectl, namespace, address) == CONNECTIONS, "no policy selects a pod"
    for spec in POLICIES:
        policy = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "policy", "namespace": namespace},
            "spec": spec,
        }
        kubectl.apply(namespace, policy)
        wanted = admitted_connections(policy)
        assert set() < wanted < CONNECTIONS

        def is_enforced(wanted: Connections = wanted) -> bool:
            return connections(kubectl, namespace, address) == wanted

        wait_until(is_enforced, ENFORCED_SECONDS, f"{spec['policyTypes']} is enforced")


def connections(kubectl: Kubectl, namespace: str, address: str) -> Connections:
    """Return the connections that get an answer."""
    return {
        (client, port)
        for client, port in CONNECTIONS
        if "gitVersion" in answer(kubectl, namespace, client, f"{address}:{port}")
    }


def admitted_connections(policy: Policy) -> Connections:
    """Return the connections that a policy admits."""
    namespace = policy["metadata"]["namespace"]
    target = Pod(namespace, {"app": "server"}, PORTS)
    return {
        (client, port)
        for client, port in CONNECTIONS
        if admitted([policy], Pod(namespace, {"app": client}), target, port)
    }


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
