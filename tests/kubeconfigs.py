"""Kubeconfigs for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml


def config(server: str, namespace: str | None = None, **user: str) -> dict[str, Any]:
    """Kubeconfig with one context, `here`."""
    context = {"cluster": "c", "user": "u"} | ({"namespace": namespace} if namespace else {})
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "here", "context": context}],
    }


def written(path: Path, document: dict[str, Any]) -> Path:
    """Write a kubeconfig; returns its file."""
    path.write_text(yaml.safe_dump(document))
    return path
