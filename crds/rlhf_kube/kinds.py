"""Kinds of objects that the operator and the command use, and their addresses on the API server."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import quote

from rlhf_api.api_names import API_VERSION, KIND, PLURAL


class Kind(Enum):
    """A namespaced kind of object: API version, name, and plural in addresses."""

    JOB = (API_VERSION, KIND, PLURAL)
    CLUSTER = ("ray.io/v1", "RayCluster", "rayclusters")
    POD = ("v1", "Pod", "pods")
    CONFIG_MAP = ("v1", "ConfigMap", "configmaps")
    SECRET = ("v1", "Secret", "secrets")
    CLAIM = ("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
    POLICY = ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
    BUDGET = ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets")
    LEASE = ("coordination.k8s.io/v1", "Lease", "leases")
    EVENT = ("events.k8s.io/v1", "Event", "events")
    CORE_EVENT = ("v1", "Event", "events")
    """Events of the older API, which kubelets write; they can be selected by their object."""

    def __init__(self, api_version: str, kind: str, plural: str) -> None:
        self.api_version = api_version
        """Group and version, such as ray.io/v1; v1 for Kubernetes' own."""
        self.kind = kind
        """Name in the singular, as in manifests: RayCluster."""
        self.plural = plural
        """Name in the plural, as in addresses: rayclusters."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Kind:
        """The kind of a manifest, by its apiVersion and kind."""
        key = (manifest["apiVersion"], manifest["kind"])
        return next(kind for kind in cls if (kind.api_version, kind.kind) == key)

    @property
    def group(self) -> str:
        """API group; empty for the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """API version without the group: v1."""
        return self.api_version.rpartition("/")[2]

    @property
    def resource(self) -> str:
        """Name in RBAC rules: rayclusters.ray.io, pods."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def header(self) -> dict[str, str]:
        """The apiVersion and kind of its objects."""
        # The API server leaves these fields out of items of lists.
        return {"apiVersion": self.api_version, "kind": self.kind}

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """The address of one object, or of all objects of a namespace or (None) of the cluster.

        Args:
            part: a subresource of the object, such as status.
        """
        root = "/apis/" if self.group else "/api/"
        scope = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        tail = "".join(f"/{quote(segment, safe='')}" for segment in (name, part) if segment)
        return f"{root}{self.api_version}{scope}/{self.plural}{tail}"
