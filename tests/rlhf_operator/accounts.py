"""The operator's account in one namespace, and its role in others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rlhf_operator.permissions import WATCHED

from ..cluster.kubectl import Kubectl

ACCOUNT = "operator"
RULES = [
    {"apiGroups": [each.group], "resources": [*each.resources], "verbs": [*each.verbs]}
    for each in WATCHED
]


def make_account(kubectl: Kubectl, namespace: str, file: Path) -> Path:
    """An account with the operator's role in its own namespace; a way into the cluster as it."""
    kubectl("create", "serviceaccount", ACCOUNT, f"--namespace={namespace}")
    bind(kubectl, namespace, namespace)
    return _kubeconfig(kubectl, namespace, file)


def bind(kubectl: Kubectl, namespace: str, home: str) -> None:
    """Give the account of one namespace the operator's role in another, or the same."""
    metadata = {"name": ACCOUNT, "namespace": namespace}
    api = "rbac.authorization.k8s.io"
    kubectl.apply(
        namespace,
        {"apiVersion": f"{api}/v1", "kind": "Role", "metadata": metadata, "rules": RULES},
    )
    kubectl.apply(
        namespace,
        {
            "apiVersion": f"{api}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "roleRef": {"apiGroup": api, "kind": "Role", "name": ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": home}],
        },
    )


def unbind(kubectl: Kubectl, namespace: str) -> None:
    """Take the role away."""
    kubectl("delete", "rolebinding", ACCOUNT, f"--namespace={namespace}")


def _kubeconfig(kubectl: Kubectl, namespace: str, file: Path) -> Path:
    """A way into the cluster as that account."""
    token = kubectl("create", "token", ACCOUNT, f"--namespace={namespace}").strip()
    config: dict[str, Any] = yaml.safe_load(kubectl.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    cluster = config["clusters"][0]["cluster"]
    if "certificate-authority" in cluster:  # it is beside the file that names it
        authority = kubectl.kubeconfig.parent / cluster["certificate-authority"]
        cluster["certificate-authority"] = str(authority)
    file.write_text(yaml.safe_dump(config))
    return file
