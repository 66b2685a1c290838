"""Pods that run kubectl: clients and servers without an image of their own."""

from __future__ import annotations

from typing import Any

from ..cluster.devcluster import CommandFailed
from ..cluster.kubectl import Kubectl

IMAGE = "localhost/kubectl:1"
"""The node has it by the fixture `node`."""


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


def answer(kubectl: Kubectl, namespace: str, client: str, address: str) -> str:
    """Return what a client's pod gets from an address, or why it gets nothing."""
    ask = ("--server=http://" + address, "--request-timeout=2s", "get", "--raw", "/version")
    try:
        return kubectl("exec", f"--namespace={namespace}", client, "--", "/kubectl", *ask)
    except CommandFailed as error:
        return str(error)
