#!/usr/bin/env python3
"""Enforces NetworkPolicies: keeps an nftables table that follows the API server's objects.

network-policies.py SERVER FOLDER NAME

FOLDER has ca.crt, NAME.crt and NAME.key. Restricts connections that pods open or accept. The node
itself reaches every pod, as kubelets must.
"""

from __future__ import annotations

import http.client
import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

TABLE = "devcluster-policies"
PATHS = {
    "policies": "/apis/networking.k8s.io/v1/networkpolicies",
    "pods": "/api/v1/pods",
    "namespaces": "/api/v1/namespaces",
}
FROM_CACHE = "?resourceVersion=0"  # the API server does not ask etcd
PERIOD_SECONDS = 0.5
ENDED = ("Succeeded", "Failed")
PEERS = {"Ingress": ("from", "saddr", "daddr"), "Egress": ("to", "daddr", "saddr")}
"""Of a direction: a rule's key of peers, and nftables' words for the peer and for the own end."""

Object = Mapping[str, Any]
Objects = Mapping[str, Sequence[Object]]
"""Objects of the cluster by the names in PATHS."""


def ruleset(cluster: Objects) -> str:
    """Return nft's input that replaces the table."""
    chains = [*isolation(cluster, "Ingress"), *isolation(cluster, "Egress")]
    # One transaction. Only a table that is there can be deleted, so it is made first.
    lines = [f"table ip {TABLE}", f"delete table ip {TABLE}", f"table ip {TABLE} {{"]
    # Jumps name chains that stand before them.
    lines += chains
    # Pods reach the API server and DNS at the node's own address: such packets are not forwarded.
    for hook, directions in (("forward", ("Egress", "Ingress")), ("input", ("Egress",))):
        lines += [
            f"chain {hook} {{",
            f"type filter hook {hook} priority 10; policy accept;",
            # Answers pass, and connections that were there before a policy.
            "ct state established,related accept",
            *(f"jump {direction}" for direction in directions),
            "}",
        ]
    return "\n".join([*lines, "}", ""])


def isolation(cluster: Objects, direction: str) -> Iterator[str]:
    """Yield a chain for each pod that a policy isolates, and one that jumps to these."""
    _, _, own_end = PEERS[direction]
    jumps = []
    for pod in cluster["pods"]:
        policies = [p for p in cluster["policies"] if is_isolated(p, pod, direction)]
        if not policies:
            continue
        address = pod["status"]["podIP"]
        chain = f"{direction}-{address}"
        yield f"chain {chain} {{"
        for policy in policies:
            yield from matches(cluster, policy, direction, pod)
        # Not rejected: a pod that has just started connects once the rules know its address.
        yield from ("drop", "}")
        jumps.append(f"ip {own_end} {address} jump {chain}")
    yield from (f"chain {direction} {{", *jumps, "}")


def matches(cluster: Objects, policy: Object, direction: str, pod: Object) -> Iterator[str]:
    """Yield rules that return for connections that a policy admits."""
    key, peer_end, _ = PEERS[direction]
    for rule in policy["spec"].get(direction.lower()) or ():
        for peer in rule.get(key) or [None]:
            for ends, pods in peer_matches(cluster, policy, peer, peer_end):
                # A named port is one of the pod that accepts the connection.
                for ports in port_matches(
                    rule.get("ports"), [pod] if direction == "Ingress" else pods
                ):
                    yield f"{ends} {ports} return"


def peer_matches(
    cluster: Objects, policy: Object, peer: Object | None, end: str
) -> Iterator[tuple[str, Sequence[Object]]]:
    """Yield matches of the addresses of a peer (None: everybody), and the pods that have them."""
    if peer is None:
        yield "", cluster["pods"]
    elif "ipBlock" in peer:
        # The node has no IPv6; one such rule would make nft refuse the table.
        if ":" in peer["ipBlock"]["cidr"]:
            return
        excluded = peer["ipBlock"].get("except")
        negated = f" ip {end} != {{ {', '.join(excluded)} }}" if excluded else ""
        yield f"ip {end} {peer['ipBlock']['cidr']}{negated}", []
    else:
        for pod in cluster["pods"]:
            if is_peer(cluster, policy, peer, pod):
                yield f"ip {end} {pod['status']['podIP']}", [pod]


def port_matches(ports: Sequence[Object] | None, targets: Sequence[Object]) -> Iterator[str]:
    """Yield matches of the ports of a rule; without ports it admits all."""
    if not ports:
        yield ""
    for port in ports or ():
        protocol = port.get("protocol", "TCP").lower()
        first = port.get("port")
        if first is None:
            yield f"ip protocol {protocol}"
        elif isinstance(first, str):
            for number in {number for pod in targets for number in numbers_of(pod, first)}:
                yield f"{protocol} dport {number}"
        else:
            yield f"{protocol} dport {first}-{port.get('endPort', first)}"


def numbers_of(pod: Object, name: str) -> Iterator[int]:
    """Yield the numbers of a pod's ports of a name."""
    for container in pod["spec"]["containers"]:
        for port in container.get("ports", ()):
            if port.get("name") == name:
                yield port["containerPort"]


def is_peer(cluster: Objects, policy: Object, peer: Object, pod: Object) -> bool:
    """Return True if the selectors of a peer select a pod."""
    namespace = pod["metadata"]["namespace"]
    if "namespaceSelector" not in peer:
        is_inside = namespace == policy["metadata"]["namespace"]
    else:
        labels = {other["metadata"]["name"]: labels_of(other) for other in cluster["namespaces"]}
        # The lists are of different moments: a new namespace may be missing until the next ones.
        is_inside = namespace in labels and has_labels(peer["namespaceSelector"], labels[namespace])
    return is_inside and has_labels(peer.get("podSelector") or {}, labels_of(pod))


def is_isolated(policy: Object, pod: Object, direction: str) -> bool:
    """Return True if a policy restricts a pod in a direction."""
    spec = policy["spec"]
    if direction not in spec["policyTypes"]:
        return False
    same = policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
    return same and has_labels(spec.get("podSelector") or {}, labels_of(pod))


def labels_of(item: Object) -> Mapping[str, str]:
    """Return the labels of an object."""
    return item["metadata"].get("labels") or {}


def has_labels(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return True if a selector selects labels; an empty one selects all."""
    equal = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in equal.items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        value, values = labels.get(expression["key"]), expression.get("values") or ()
        holds = {
            "In": value in values,
            "NotIn": value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }
        if not holds[expression["operator"]]:
            return False
    return True


class Cluster:
    """The API server, read over one connection."""

    def __init__(self, server: str, folder: Path, name: str) -> None:
        context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        context.load_cert_chain(folder / f"{name}.crt", folder / f"{name}.key")
        self._connection = http.client.HTTPSConnection(server, context=context, timeout=10)

    def objects(self) -> Objects:
        """Return policies, namespaces, and pods that have an address of their own."""
        cluster = {kind: self._items(path) for kind, path in PATHS.items()}
        cluster["pods"] = [pod for pod in cluster["pods"] if has_own_address(pod)]
        return cluster

    def _items(self, path: str) -> list[Object]:
        try:
            self._connection.request("GET", path + FROM_CACHE)
            response = self._connection.getresponse()
            body = response.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # the next request connects again
            raise
        if response.status != http.client.OK:
            raise OSError(f"{path}: {response.status} {body.decode(errors='replace')[:200]}")
        items: list[Object] = json.loads(body)["items"]
        return items


def has_own_address(pod: Object) -> bool:
    """Return True if a pod has an address, and no pod after it can have the same."""
    status = pod["status"]
    is_live = bool(status.get("podIP")) and status["phase"] not in ENDED
    return is_live and not pod["spec"].get("hostNetwork")


def main(server: str, folder: str, name: str) -> None:
    """Follow the API server until the process is ended."""
    cluster, applied = Cluster(server, Path(folder), name), ""
    while True:
        try:
            wanted = ruleset(cluster.objects())
            if wanted != applied:
                subprocess.run(["nft", "--file", "-"], input=wanted, text=True, check=True)
                applied = wanted
        except (OSError, http.client.HTTPException, subprocess.CalledProcessError) as error:
            # The table stays as it is until the API server answers.
            print(f"tried again: {error}", file=sys.stderr, flush=True)
        time.sleep(PERIOD_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
