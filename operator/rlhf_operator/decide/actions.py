"""Actions that a decision may request besides a new status. Every action is idempotent."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CreateCluster:
    """Create the attempt's RayCluster, and before it the other owned objects."""

    attempt: int


@dataclass(frozen=True)
class RestoreOwnedObjects:
    """Create the manifest's ConfigMap, the token's Secret and the NetworkPolicy if missing."""

    manifest: str
    """Name of the ConfigMap that the cluster's pods mount."""


@dataclass(frozen=True)
class DeleteCluster:
    """Delete the RayCluster with this uid."""

    name: str
    uid: str


@dataclass(frozen=True)
class ReleaseWorkers:
    """Scale the RayCluster with this uid to its head."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Delete the pod with this uid; KubeRay creates another one."""

    name: str
    uid: str


@dataclass(frozen=True)
class SubmitDriver:
    """Start a driver on the head of the current cluster."""

    submission_id: str


@dataclass(frozen=True)
class StopDriver:
    """Ask a driver to save and end."""

    submission_id: str


@dataclass(frozen=True)
class AcknowledgeReport:
    """Tell a driver that its final report is in the status, so that it need not linger."""

    submission_id: str
    sequence: int


KubeAction = CreateCluster | RestoreOwnedObjects | DeleteCluster | ReleaseWorkers | DeletePod
"""Requests to Kubernetes."""
HeadAction = SubmitDriver | StopDriver | AcknowledgeReport
"""Requests to a head."""
Action = KubeAction | HeadAction


@dataclass(frozen=True)
class JobEvent:
    """A Kubernetes Event about the job."""

    reason: str
    message: str
    is_warning: bool = False
