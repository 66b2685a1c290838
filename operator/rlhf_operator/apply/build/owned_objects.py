"""What a cluster needs beside it: its manifest, its token, and who may talk to it.

Each is named by a digest of its content and never changed: to make one that is there already does
nothing, and another content has another name. So the operator needs no right but to create them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import yaml

from rlhf_api.on_cluster import DASHBOARD_PORT, JOB_LABEL, MANIFEST, REPORT_PORT, TOKEN_KEY
from rlhf_api.spec.job import RLHFJob
from rlhf_operator.apply.build.owner import Owner

OPERATOR_LABELS = {"app.kubernetes.io/name": "rlhf-operator"}
"""Of the operator's own pods; the chart sets them."""


def config_map(owner: Owner, job: RLHFJob, name: str | None = None) -> Mapping[str, Any]:
    """The manifest in force, as the driver reads it.

    Values at their defaults are left out: the driver has them, too, and its release may be another.

    Args:
        job: with the chart's defaults.
        name: under which a cluster looks for it already. None: one is given.
    """
    document = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {"name": owner.name, "namespace": owner.namespace},
        "spec": job.spec.model_dump(mode="json", by_alias=True, exclude_defaults=True),
    }
    content = yaml.safe_dump(document, sort_keys=False)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name or f"{owner.children}-{_digest(content)}"),
        "immutable": True,
        "data": {MANIFEST.rpartition("/")[2]: content},
    }


def token(key: bytes, owner: Owner) -> str:
    """The bearer token of a job's clusters: nobody can guess it, and the operator need not keep
    it."""
    return hmac.new(key, f"{owner.namespace}/{owner.uid}".encode(), hashlib.sha256).hexdigest()


def secret_name(owner: Owner, token: str) -> str:
    """The name of a token's Secret, by which nobody learns the token; each key of an operator's has
    its own."""
    return f"{owner.children}-{_digest(token)}"


def secret(owner: Owner, token: str) -> Mapping[str, Any]:
    """The token, as KubeRay gives it to the pods."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": owner.metadata(secret_name(owner, token)),
        "immutable": True,
        "data": {TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def network_policy(
    owner: Owner, operator_namespace: str | None, from_anywhere: bool = False
) -> Mapping[str, Any]:
    """Only the job's own pods reach its pods, and the operator reaches its head.

    Args:
        operator_namespace: where the operator's pods are. None: it has none.
        from_anywhere: whether anybody may reach the ports that the operator needs. Who comes
            through the API server has an address that no policy can name; the token keeps others
            out.
    """
    ingress: list[Mapping[str, Any]] = [{"from": [{"podSelector": _labelled(owner)}]}]
    ports = [{"protocol": "TCP", "port": port} for port in (DASHBOARD_PORT, REPORT_PORT)]
    if from_anywhere:
        ingress.append({"ports": ports})
    elif operator_namespace is not None:
        ingress.append({"from": [_operator_in(operator_namespace)], "ports": ports})
    spec = {"podSelector": _labelled(owner), "policyTypes": ["Ingress"], "ingress": ingress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(f"{owner.children}-{_digest(json.dumps(spec))}"),
        "spec": spec,
    }


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _operator_in(namespace: str) -> Mapping[str, Any]:
    labels = {"kubernetes.io/metadata.name": namespace}
    return {
        "namespaceSelector": {"matchLabels": labels},
        "podSelector": {"matchLabels": OPERATOR_LABELS},
    }


def _labelled(owner: Owner) -> Mapping[str, Any]:
    return {"matchLabels": {JOB_LABEL: owner.name}}
