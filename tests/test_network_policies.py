"""The evaluator of NetworkPolicies agrees with Kubernetes' documentation of them."""

from __future__ import annotations

from typing import Any

import pytest

from .network_policies import Outside, Pod, admitted

DATABASE = Pod("shop", {"app": "database"}, ports={"sql": 5432})
WEB = Pod("shop", {"app": "web"})
FOREIGN_WEB = Pod("blog", {"app": "web"})
MONITOR = Pod("watch", {"app": "prometheus"}, namespace_labels={"team": "platform"})
INTERNET = Outside("203.0.113.7")


def policy(**spec: Any) -> dict[str, Any]:
    """Policy that selects the database."""
    selected = {"podSelector": {"matchLabels": {"app": "database"}}}
    return {"metadata": {"name": "p", "namespace": "shop"}, "spec": {**selected, **spec}}


def ingress(*peers: dict[str, Any], **ports: Any) -> dict[str, Any]:
    return policy(ingress=[{"from": list(peers), **ports}])


def test_without_a_policy_everything_is_admitted() -> None:
    assert admitted([], INTERNET, DATABASE, 5432)


def test_a_policy_without_rules_admits_nothing_in_and_everything_out() -> None:
    closed = [policy()]
    assert not admitted(closed, WEB, DATABASE, 5432)
    assert admitted(closed, DATABASE, INTERNET, 443)
    assert admitted(closed, INTERNET, WEB, 80), "it is about the database only"


def test_an_empty_list_of_egress_rules_needs_its_type_to_be_stated() -> None:
    assert admitted([policy(egress=[])], DATABASE, INTERNET, 443)
    stated = policy(egress=[], policyTypes=["Egress"])
    assert not admitted([stated], DATABASE, INTERNET, 443)
    assert admitted([stated], WEB, DATABASE, 5432)


@pytest.mark.parametrize(
    ("peer", "admits"),
    [
        ({"podSelector": {"matchLabels": {"app": "web"}}}, {WEB.namespace}),
        ({"podSelector": {}}, {"shop"}),
        ({"namespaceSelector": {}}, {"shop", "blog", "watch"}),
        (
            {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "web"}}},
            {"shop", "blog"},
        ),
        ({"namespaceSelector": {"matchLabels": {"team": "platform"}}}, {"watch"}),
        (
            {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}},
            {"watch"},
        ),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x"]}]
                }
            },
            {"shop", "blog", "watch"},
        ),
        ({"ipBlock": {"cidr": "203.0.113.0/24"}}, {"outside"}),
        ({"ipBlock": {"cidr": "203.0.113.0/24", "except": ["203.0.113.0/28"]}}, set()),
    ],
)
def test_peers_match_as_documented(peer: dict[str, Any], admits: set[str]) -> None:
    ends = {"shop": WEB, "blog": FOREIGN_WEB, "watch": MONITOR, "outside": INTERNET}
    assert {n for n, end in ends.items() if admitted([ingress(peer)], end, DATABASE, 1)} == admits


@pytest.mark.parametrize(
    ("port", "admits"),
    [
        ({"port": 5432}, {5432}),
        ({"port": "sql"}, {5432}),
        ({"port": "sql", "protocol": "UDP"}, set()),
        ({"port": 5000, "endPort": 5432}, {5000, 5432}),
        ({"protocol": "TCP"}, {22, 5000, 5432}),
    ],
)
def test_ports_match_as_documented(port: dict[str, Any], admits: set[int]) -> None:
    rules = [ingress(ports=[port])]
    assert {n for n in (22, 5000, 5432) if admitted(rules, INTERNET, DATABASE, n)} == admits


def test_policies_add_up_and_both_ends_have_to_consent() -> None:
    two = [ingress({"podSelector": {}}), ingress({"ipBlock": {"cidr": "0.0.0.0/0"}})]
    assert admitted(two, WEB, DATABASE, 1) and admitted(two, INTERNET, DATABASE, 1)
    assert not admitted(two, FOREIGN_WEB, DATABASE, 1)
    shut = {
        "metadata": {"name": "q", "namespace": "shop"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"]},
    }
    assert not admitted([*two, shut], WEB, DATABASE, 1)
