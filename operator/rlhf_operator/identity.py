"""The operator's identity: its release, and the key from which clusters' tokens derive."""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Kube
from rlhf_operator.config import BadConfig


@dataclass(frozen=True)
class Identity:
    """Distinguishes this operator from others in the same cluster."""

    key: bytes = field(repr=False)
    """Secret from which the tokens of its clusters derive."""
    release: str
    """NAMESPACE/NAME of the Lease that its replicas share; without a slash for an operator outside
    of a cluster."""

    @property
    def key_id(self) -> str:
        """Digest that identifies the key without revealing it."""
        return hashlib.sha256(b"key-id:" + self.key).hexdigest()[:16]


FIELD = "key"
SIZE = 32
"""Minimum size of a key in bytes."""


def key_in_cluster(kube: Kube, namespace: str, name: str) -> bytes:
    """Return the key in the operator's own Secret; create the Secret if it does not exist.

    Raises:
        KubeError: it can be neither read nor created.
        BadConfig: the Secret has no valid key.
    """
    secret = kube.get(Kind.SECRET, namespace, name)
    if secret is None:
        key = base64.b64encode(secrets.token_bytes(SIZE)).decode()
        kube.create(
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": name, "namespace": namespace},
                # Another key would make the tokens of all running clusters invalid.
                "immutable": True,
                "data": {FIELD: key},
            }
        )
        # Another replica may have been faster: the Secret that exists counts.
        secret = kube.get(Kind.SECRET, namespace, name)
    data = (secret or {}).get("data") or {}
    stored = base64.b64decode(data.get(FIELD, ""))
    if len(stored) < SIZE:
        raise BadConfig(
            f"Secret {namespace}/{name}: got {len(stored)} bytes in its key {FIELD!r}, allowed at "
            f"least {SIZE}: delete it, and the operator creates a valid one"
        )
    return stored


def key_in_file(file: Path) -> bytes:
    """Return the key of an operator outside of a cluster; create the file if it does not exist.

    Raises:
        OSError: it can be neither read nor created.
        BadConfig: the file has no valid key.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        _create(file)
    key = file.read_bytes()
    if len(key) < SIZE:
        raise BadConfig(
            f"{file}: got {len(key)} bytes, allowed at least {SIZE}: delete it, and the operator "
            "creates a valid one"
        )
    return key


def _create(file: Path) -> None:
    # Renamed when complete: a process that dies in between leaves no partial key. mkstemp makes
    # the file readable for its owner only.
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    with os.fdopen(handle, "wb") as partial:
        partial.write(secrets.token_bytes(SIZE))
    os.replace(name, file)
