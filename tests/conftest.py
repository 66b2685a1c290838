"""Fixtures that tests of several packages share."""

from __future__ import annotations

from .cluster.session import defined, kubeconfig, kubectl, namespace

__all__ = ["defined", "kubeconfig", "kubectl", "namespace"]
