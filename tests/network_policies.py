"""Semantics of NetworkPolicies; tests/e2e compares them with enforced ones.

A connection needs the consent of both ends. A pod that no policy selects in a direction admits
everything there; a selected one admits the connections that a rule of any of these policies names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from typing import Any, Literal

Policy = Mapping[str, Any]
"""NetworkPolicy object."""
Direction = Literal["Ingress", "Egress"]


@dataclass(frozen=True)
class Pod:
    """One end of a connection, inside the cluster."""

    namespace: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ports: Mapping[str, int] = field(default_factory=dict)
    """Numbers of named ports."""
    namespace_labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the namespace besides kubernetes.io/metadata.name."""

    @property
    def labels_of_namespace(self) -> Mapping[str, str]:
        return {"kubernetes.io/metadata.name": self.namespace, **self.namespace_labels}


@dataclass(frozen=True)
class Outside:
    """One end of a connection, outside the cluster."""

    address: str


End = Pod | Outside


def admitted(
    policies: Iterable[Policy],
    source: End,
    target: End,
    port: int,
    protocol: str = "TCP",
) -> bool:
    """True if a connection from source to a port of target is admitted."""
    all_policies = list(policies)
    leaves = _consents(all_policies, "Egress", source, target, target, port, protocol)
    return leaves and _consents(all_policies, "Ingress", target, source, target, port, protocol)


def _consents(
    policies: list[Policy],
    direction: Direction,
    pod: End,
    peer: End,
    target: End,
    port: int,
    protocol: str,
) -> bool:
    """True if the policies of one end admit the other one."""
    if isinstance(pod, Outside):
        return True
    own = [p for p in policies if _selects(p, pod) and direction in _directions(p)]
    word, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    return not own or any(
        _some_peer(rule.get(peers), policy, peer)
        and _some_port(rule.get("ports"), target, port, protocol)
        for policy in own
        for rule in policy["spec"].get(word) or ()
    )


def _selects(policy: Policy, pod: Pod) -> bool:
    if policy["metadata"]["namespace"] != pod.namespace:
        return False
    return _matches(policy["spec"]["podSelector"], pod.labels)


def _directions(policy: Policy) -> list[str]:
    """Directions that a policy restricts."""
    # Without policyTypes: always Ingress, and Egress if there are egress rules.
    stated: list[str] | None = policy["spec"].get("policyTypes")
    return stated or ["Ingress", *(["Egress"] if policy["spec"].get("egress") else [])]


def _some_peer(peers: list[Any] | None, policy: Policy, end: End) -> bool:
    # Without peers a rule admits all.
    return not peers or any(_is_peer(peer, policy, end) for peer in peers)


def _is_peer(peer: Mapping[str, Any], policy: Policy, end: End) -> bool:
    if "ipBlock" in peer:
        return isinstance(end, Outside) and _in_block(peer["ipBlock"], end.address)
    if isinstance(end, Outside):
        return False
    if "namespaceSelector" not in peer:
        same = end.namespace == policy["metadata"]["namespace"]
        return same and _matches(peer["podSelector"], end.labels)
    inside = _matches(peer["namespaceSelector"], end.labels_of_namespace)
    return inside and _matches(peer.get("podSelector", {}), end.labels)


def _in_block(block: Mapping[str, Any], address: str) -> bool:
    ip = ip_address(address)
    outside = any(ip in ip_network(cidr) for cidr in block.get("except") or ())
    return ip in ip_network(block["cidr"]) and not outside


def _some_port(ports: list[Any] | None, target: End, number: int, protocol: str) -> bool:
    # Without ports a rule admits all.
    return not ports or any(_is_port(port, target, number, protocol) for port in ports)


def _is_port(port: Mapping[str, Any], target: End, number: int, protocol: str) -> bool:
    if port.get("protocol", "TCP") != protocol:
        return False
    first = port.get("port")
    if isinstance(first, str):
        return isinstance(target, Pod) and target.ports.get(first) == number
    return first is None or first <= number <= port.get("endPort", first)


def _matches(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    # An empty selector matches everything.
    equal = all(labels.get(key) == value for key, value in _items(selector, "matchLabels"))
    return equal and all(_holds(e, labels) for e in selector.get("matchExpressions") or ())


def _items(selector: Mapping[str, Any], key: str) -> Iterable[tuple[str, str]]:
    pairs: Mapping[str, str] = selector.get(key) or {}
    return pairs.items()


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    raise ValueError(f"operator of a selector: got {expression['operator']}")
