"""Objects that a cluster needs beside the RayCluster: ConfigMap, Secret and NetworkPolicy.

Each name contains a digest of the object's content, and objects never change: to create one that
exists does nothing, and another content has another name. So the operator only needs the right to
create them.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from rlhf_api.on_cluster import DASHBOARD_PORT, JOB_LABEL, MANIFEST, REPORT_PORT, TOKEN_KEY
from rlhf_api.spec.job import RLHFJob
from rlhf_api.yaml_dump import dump_yaml
from rlhf_operator.apply.build.owner import Owner

UNREAD_FIELDS: Mapping[str, Any] = {
    **dict.fromkeys(("cluster_ttl_seconds", "ttl_seconds_after_finished"), True),
    "resources": {
        **dict.fromkeys(("pod", "head_pod"), True),
        "node_pools": {"__all__": {"pod", "device_resource"}},
    },
}
"""Fields that only the operator reads, in the form of pydantic's `exclude`. Without them an image
of an earlier release runs jobs whose pods a chart's defaults shape."""
OPERATOR_LABELS = {"app.kubernetes.io/name": "rlhf-operator"}
"""Labels that the chart gives the operator's own pods."""


def config_map(owner: Owner, job: RLHFJob, name: str | None = None) -> Mapping[str, Any]:
    """Return the ConfigMap with the manifest that the driver reads.

    Args:
        job: with the chart's defaults.
        name: that an existing cluster mounts. None: by digest.
    """
    # Without fields at their defaults: the image may have another release of the schema, which
    # knows its own defaults and rejects fields that it does not know.
    document = {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {"name": owner.name, "namespace": owner.namespace},
        "spec": job.spec.model_dump(
            mode="json", by_alias=True, exclude_defaults=True, exclude=dict(UNREAD_FIELDS)
        ),
    }
    # In a fixed order, as the name is a digest of the text.
    content = dump_yaml(document)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": owner.metadata(name or f"{owner.name_prefix}-{_digest(content)}"),
        "immutable": True,
        "data": {MANIFEST.rpartition("/")[2]: content},
    }


def token(key: bytes, owner: Owner) -> str:
    """Return the bearer token of a job's clusters, derived from the operator's key."""
    # Derived, not stored: the operator needs no right to read Secrets, and every replica and every
    # later process knows the token. The uid makes it another one for a later job of the same name.
    return hmac.new(key, f"{owner.namespace}/{owner.uid}".encode(), hashlib.sha256).hexdigest()


def secret_name(owner: Owner, token: str) -> str:
    """Return the name of a token's Secret; it differs by key and does not reveal the token."""
    return f"{owner.name_prefix}-{_digest(token)}"


def secret(owner: Owner, token: str) -> Mapping[str, Any]:
    """Return the Secret from which KubeRay passes the token to the pods."""
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
    """Return a policy that admits only the job's own pods, and the operator to its head.

    Args:
        operator_namespace: of the operator's pods. None: it is outside the cluster.
        from_anywhere: True to admit everybody to the ports that the operator needs.
    """
    ingress: list[Mapping[str, Any]] = [{"from": [{"podSelector": _job_selector(owner)}]}]
    ports = [{"protocol": "TCP", "port": port} for port in (DASHBOARD_PORT, REPORT_PORT)]
    if from_anywhere:
        # Connections through the API server have addresses that no policy can name. The token
        # protects the ports.
        ingress.append({"ports": ports})
    elif operator_namespace is not None:
        ingress.append({"from": [_operator_peer(operator_namespace)], "ports": ports})
    # Ingress only: jobs download models and data, from addresses that are not known here.
    spec = {"podSelector": _job_selector(owner), "policyTypes": ["Ingress"], "ingress": ingress}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": owner.metadata(f"{owner.name_prefix}-{_digest(json.dumps(spec))}"),
        "spec": spec,
    }


def _digest(content: str) -> str:
    return hashlib.sha256(content.encode()).hexdigest()[:8]


def _operator_peer(namespace: str) -> Mapping[str, Any]:
    labels = {"kubernetes.io/metadata.name": namespace}
    return {
        "namespaceSelector": {"matchLabels": labels},
        "podSelector": {"matchLabels": OPERATOR_LABELS},
    }


def _job_selector(owner: Owner) -> Mapping[str, Any]:
    return {"matchLabels": {JOB_LABEL: owner.name}}
