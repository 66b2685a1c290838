"""What the operator may do in a cluster, each with why. The chart's roles are made from this.

Nothing else states its rights: `make generate` writes them into the chart, and tests ask a real API
server what the chart's service account may and may not do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from rlhf_api.crd.definition import PLURAL
from rlhf_api.spec.job import GROUP

LEASES: Final = "coordination.k8s.io"


@dataclass(frozen=True)
class Permission:
    """One rule of a role."""

    group: str
    """The API group; empty for the core one."""
    resources: tuple[str, ...]
    """Plural names, a subresource after a slash."""
    verbs: tuple[str, ...]
    why: str
    """What the operator does with it, in a line."""
    named: Literal["", "keySecret", "lease"] = ""
    """The only object that it is about: the Secret with the operator's own key, or its Lease.
    Empty: all of them."""


WATCHED: Final = (
    Permission(
        GROUP,
        (PLURAL,),
        ("get", "list", "watch", "patch"),
        "follow jobs; patch is for the finalizer, a job's spec is never written",
    ),
    Permission(GROUP, (f"{PLURAL}/status",), ("patch",), "tell what became of a job"),
    Permission(
        GROUP,
        (f"{PLURAL}/finalizers",),
        ("update",),
        "own a job's objects where the API server checks who may block a deletion",
    ),
    Permission(
        "ray.io",
        ("rayclusters",),
        ("get", "list", "watch", "create", "delete"),
        "one cluster for each attempt of a job, under a name that nobody else has taken",
    ),
    Permission(
        "",
        ("pods",),
        ("list", "watch", "delete"),
        "tell why pods do not start; delete workers that a driver left dirty",
    ),
    Permission(
        "",
        ("configmaps",),
        ("get", "create"),
        "the manifest in force of each job; get tells whether that of a job's own code is there",
    ),
    Permission("", ("secrets",), ("create",), "each cluster's token; no Secret is ever read"),
    Permission(
        "networking.k8s.io",
        ("networkpolicies",),
        ("create",),
        "keep others away from a job's pods",
    ),
    Permission(
        "",
        ("persistentvolumeclaims",),
        ("get",),
        "whether the checkpoint claim exists, and whether several nodes can mount it",
    ),
    Permission(
        LEASES,
        ("leases",),
        ("get",),
        "whether another release, which has made a job's cluster, is still there",
    ),
    Permission("", ("events",), ("list",), "tell in kubelets' words why a pod does not start"),
    Permission("events.k8s.io", ("events",), ("create",), "tell people what happened"),
)
"""In every namespace with jobs: all of them, or those of the chart's watchNamespaces. Kinds and
namespaces of the cluster itself are not watched."""

PROXIED_HEADS: Final = (
    Permission(
        "",
        ("pods/proxy",),
        ("get", "create"),
        "reach heads through the API server (headAccess: proxy)",
    ),
)
"""In the same namespaces, only where heads are reached through the API server."""

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
        LEASES, ("leases",), ("create",), "tell which replica acts, where the chart's own is gone"
    ),
    Permission(
        LEASES,
        ("leases",),
        ("get", "patch"),
        "hold the Lease that the release's replicas share",
        named="lease",
    ),
)
"""In the operator's own namespace."""
