"""The operator's own key, from which it makes the clusters' tokens."""

from __future__ import annotations

import base64
import secrets
from pathlib import Path

from rlhf_operator.config import BadConfig
from rlhf_operator.kube.protocol import Kind, Kube

FIELD = "key"
SIZE = 32
"""Bytes."""


def key_in_cluster(kube: Kube, namespace: str, name: str) -> bytes:
    """The key in the operator's own Secret, which is made if it is not there.

    Raises:
        KubeError: it can be neither read nor made.
        BadConfig: the Secret holds no key.
    """
    fresh = base64.b64encode(secrets.token_bytes(SIZE)).decode()
    made = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "namespace": namespace},
        "immutable": True,
        "data": {FIELD: fresh},
    }
    found = kube.get(Kind.SECRET, namespace, name)
    if found is None:
        kube.create(made)
        found = kube.get(Kind.SECRET, namespace, name)
    data = (found or {}).get("data") or {}
    key = base64.b64decode(data.get(FIELD, ""))
    if len(key) < SIZE:
        raise BadConfig(
            f"Secret {namespace}/{name}: got {len(key)} bytes in its key {FIELD!r}, allowed at "
            f"least {SIZE}: delete it, and the operator makes a good one"
        )
    return key


def key_in_file(file: Path) -> bytes:
    """The key of an operator that runs outside of the cluster; made if it is not there.

    Raises:
        OSError: it can be neither read nor made.
        BadConfig: the file holds no key.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        file.write_bytes(secrets.token_bytes(SIZE))
    key = file.read_bytes()
    if len(key) < SIZE:
        raise BadConfig(
            f"{file}: got {len(key)} bytes, allowed at least {SIZE}: delete it, and the operator "
            "makes a good one"
        )
    return key
