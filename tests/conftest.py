"""Fixtures that tests of several packages share, and what makes tests fit any machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from .cluster.definition import defined
from .cluster.session import kubeconfig, kubectl, namespace

__all__ = ["defined", "kubeconfig", "kubectl", "namespace"]

# A busy machine is not a failure.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")
