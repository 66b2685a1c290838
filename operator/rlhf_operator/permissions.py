"""The operator's rights in a cluster, with reasons. The chart's roles derive from this.

This is their only source: `make generate` writes them into the chart, and tests ask a real API
server if the chart's service account has these rights and no others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rlhf_api.api_names import GROUP, PLURAL

LEASES: Final = "coordination.k8s.io"


@dataclass(frozen=True)
class Permission:
    """One rule of a role."""

    group: str
    """The API group; empty for the core one."""
    resources: tuple[str, ...]
    """Plural names; a subresource follows a slash."""
    verbs: tuple[str, ...]
    why: str
    """Use of the right, in one line."""
    named: Literal["", "keySecret", "lease"] = ""
    """Limits the rule to one object: the Secret with the operator's own key, or its Lease. Empty:
    all objects."""


WATCHED: Final = (
    Permission(
        GROUP,
        (PLURAL,),
        ("get", "list", "watch"),
        "follow jobs; the operator writes nothing of a job but its status",
    ),
    Permission(GROUP, (f"{PLURAL}/status",), ("patch",), "report the state of a job"),
    Permission(
        GROUP,
        (f"{PLURAL}/finalizers",),
        ("update",),
        "own a job's objects where the API server checks who may block a deletion",
    ),
    Permission(
        "ray.io",
        ("rayclusters",),
        ("get", "list", "watch", "create", "patch", "delete"),
        "one cluster for each attempt of a job, under a name that nobody else has taken; patch "
        "releases the workers of a job that has ended",
    ),
    Permission(
        "",
        ("pods",),
        ("list", "watch", "delete"),
        "report why pods do not start; delete workers that a driver left dirty",
    ),
    Permission(
        "",
        ("configmaps",),
        ("get", "create"),
        "the manifest in force of each job; get checks that the one with a job's code exists",
    ),
    Permission("", ("secrets",), ("create",), "each cluster's token; no Secret is ever read"),
    Permission(
        "networking.k8s.io",
        ("networkpolicies",),
        ("create",),
        "keep others away from a job's pods",
    ),
    Permission(
        "policy",
        ("poddisruptionbudgets",),
        ("create",),
        "keep drains away from pods of jobs that ask for it",
    ),
    Permission(
        "",
        ("persistentvolumeclaims",),
        ("get",),
        "check that the checkpoint claim exists, and that several nodes can mount it",
    ),
    Permission(
        LEASES,
        ("leases",),
        ("get",),
        "check if another release, which created a job's cluster, is still installed",
    ),
    Permission("", ("events",), ("list",), "report kubelets' reasons why a pod does not start"),
    Permission("", ("events",), ("create",), "record events about jobs"),
)
"""Rights in every namespace with jobs: all, or those of the chart's watchNamespaces. No rights to
watch kinds or namespaces."""

PROXIED_HEADS: Final = (
    Permission(
        "",
        ("pods/proxy",),
        ("get", "create"),
        "reach heads through the API server (headAccess: proxy)",
    ),
)
"""Rights in the same namespaces if heads are reached through the API server."""

OWN: Final = (
    Permission("", ("secrets",), ("create",), "the operator's key, made at its first start"),
    Permission(
        "",
        ("secrets",),
        ("get",),
        "read that key, the only Secret that it may read",
        named="keySecret",
    ),
    Permission(
        LEASES, ("leases",), ("create",), "elect a leader if the chart's own Lease was deleted"
    ),
    Permission(
        LEASES,
        ("leases",),
        ("get", "patch"),
        "hold the Lease that the release's replicas share",
        named="lease",
    ),
)
"""Rights in the operator's own namespace."""
