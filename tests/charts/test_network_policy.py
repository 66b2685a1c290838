"""Whom the operator's own NetworkPolicy lets in and where it lets the operator go."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.on_cluster import DASHBOARD_PORT, GCS_PORT, REPORT_PORT

from ..network_policies import End, Outside, Pod, admitted
from .helm import NAMESPACE, Helm, Object, of_kind, the

PROMETHEUS = Pod("monitoring", {"app": "prometheus"})
STRANGER = Pod("team-c", {"app": "notebook"})
HEAD = Pod("team-a", {"ray.io/node-type": "head"})
WORKER = Pod("team-a", {"ray.io/node-type": "worker"})
UNWATCHED_HEAD = Pod("team-c", {"ray.io/node-type": "head"})
DNS = Pod("kube-system", {"k8s-app": "kube-dns"})
API_SERVER = Outside("10.0.0.1")
INTERNET = Outside("203.0.113.7")


def policies(objects: list[Object]) -> list[Object]:
    return list(of_kind(objects, "NetworkPolicy"))


def operator(objects: list[Object]) -> Pod:
    template: Any = the(objects, "Deployment")["spec"]["template"]
    return Pod(NAMESPACE, template["metadata"]["labels"], ports={"http": 8080})


def pod_of_helm_test(objects: list[Object]) -> Pod:
    return Pod(NAMESPACE, the(objects, "Pod")["metadata"]["labels"])


@pytest.mark.parametrize(
    ("case", "source", "port", "admits"),
    [
        ("namespaces", PROMETHEUS, 8080, True),
        ("namespaces", STRANGER, 8080, True),
        ("namespaces", STRANGER, 22, False),
        ("everything", PROMETHEUS, 8080, True),
        ("everything", PROMETHEUS, 22, False),
        ("everything", STRANGER, 8080, False),
        ("everything", HEAD, 8080, False),
        ("everything", INTERNET, 8080, False),
    ],
)
def test_who_reaches_the_operator(
    helm: Helm, case: str, source: End, port: int, admits: bool
) -> None:
    objects = helm.render(case)
    assert admitted(policies(objects), source, operator(objects), port) is admits


@pytest.mark.parametrize(
    ("case", "target", "port", "protocol", "admits"),
    [
        ("namespaces", API_SERVER, 443, "TCP", True),
        ("namespaces", API_SERVER, 6443, "TCP", True),
        ("namespaces", API_SERVER, 443, "UDP", False),
        ("namespaces", INTERNET, 80, "TCP", False),
        ("namespaces", DNS, 53, "UDP", True),
        ("namespaces", DNS, 53, "TCP", True),
        ("namespaces", HEAD, DASHBOARD_PORT, "TCP", True),
        ("namespaces", HEAD, REPORT_PORT, "TCP", True),
        ("namespaces", HEAD, GCS_PORT, "TCP", False),
        ("namespaces", WORKER, REPORT_PORT, "TCP", False),
        ("namespaces", UNWATCHED_HEAD, REPORT_PORT, "TCP", False),
        ("everything", API_SERVER, 6443, "TCP", True),
        ("everything", API_SERVER, 443, "TCP", False),
        ("everything", INTERNET, 6443, "TCP", False),
        ("everything", DNS, 53, "UDP", True),
        ("everything", STRANGER, 53, "UDP", False),
        # It reaches heads through the API server.
        ("everything", HEAD, DASHBOARD_PORT, "TCP", False),
    ],
)
def test_where_the_operator_goes(
    helm: Helm, case: str, target: End, port: int, protocol: str, admits: bool
) -> None:
    objects = helm.render(case)
    assert admitted(policies(objects), operator(objects), target, port, protocol) is admits


def test_watching_all_namespaces_it_reaches_heads_in_all(helm: Helm) -> None:
    objects = helm.render("smallest", "--set", "networkPolicy.enabled=true")
    for head in (HEAD, UNWATCHED_HEAD):
        assert admitted(policies(objects), operator(objects), head, REPORT_PORT)


def test_the_pod_of_helm_test_is_let_in(helm: Helm) -> None:
    objects = helm.render("everything")
    assert admitted(policies(objects), pod_of_helm_test(objects), operator(objects), 8080)


def test_other_pods_of_the_namespace_are_left_alone(helm: Helm) -> None:
    objects = helm.render("everything")
    assert admitted(policies(objects), INTERNET, Pod(NAMESPACE, {"app": "other"}), 22)
