"""The operator's own key, from which it makes the clusters' tokens."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Kube
from rlhf_operator.errors import BadConfig


@dataclass(frozen=True)
class Identity:
    """Which operator this is."""

    key: bytes = field(repr=False)
    """From which the tokens of its clusters are made."""
    release: str
    """The namespace and the name of the Lease that its replicas share, with a slash between; for
    one outside of a cluster a word without a slash."""

    @property
    def key_id(self) -> str:
        """By which others know the key, without learning it."""
        return hashlib.sha256(b"key-id:" + self.key).hexdigest()[:16]


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
        _make(file)
    key = file.read_bytes()
    if len(key) < SIZE:
        raise BadConfig(
            f"{file}: got {len(key)} bytes, allowed at least {SIZE}: delete it, and the operator "
            "makes a good one"
        )
    return key


def _make(file: Path) -> None:
    """Under its name there is never half a key: who dies in between leaves none."""
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")  # for its owner only
    with os.fdopen(handle, "wb") as half:
        half.write(secrets.token_bytes(SIZE))
    os.replace(name, file)
