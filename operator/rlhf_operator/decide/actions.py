"""What a decision may ask for besides a new status. Every action may be done twice without harm."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class HoldJob:
    """Put the finalizer on the job: a cluster is about to exist."""


@dataclass(frozen=True)
class ReleaseJob:
    """Take it off: no cluster exists."""


@dataclass(frozen=True)
class MakeCluster:
    """Make the attempt's RayCluster, and before it the manifest, the token and the policy."""

    attempt: int


@dataclass(frozen=True)
class RestoreCompanions:
    """Make the manifest, the token and the policy again where they are gone."""

    manifest: str
    """The name of the ConfigMap with the manifest that the cluster's pods mount."""


@dataclass(frozen=True)
class DeleteCluster:
    """Delete this very RayCluster."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Delete this very pod; KubeRay makes it again."""

    name: str
    uid: str


@dataclass(frozen=True)
class Submit:
    """Start a driver on the head of the current cluster."""

    submission_id: str


@dataclass(frozen=True)
class Stop:
    """Let a driver save and end."""

    submission_id: str


@dataclass(frozen=True)
class Acknowledge:
    """Tell a driver that its final report is in the status."""

    submission_id: str
    sequence: int


KubeAction = HoldJob | ReleaseJob | MakeCluster | RestoreCompanions | DeleteCluster | DeletePod
"""What is asked of Kubernetes."""
HeadAction = Submit | Stop | Acknowledge
"""What is asked of a head."""
Action = KubeAction | HeadAction


@dataclass(frozen=True)
class Note:
    """An event for people."""

    reason: str
    message: str
    is_warning: bool = False
