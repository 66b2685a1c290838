"""Fixtures that tests of several packages share."""

from __future__ import annotations

from .cluster.definition import defined
from .cluster.session import kubeconfig, kubectl, namespace

__all__ = ["defined", "kubeconfig", "kubectl", "namespace"]
