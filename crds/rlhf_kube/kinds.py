"""The kinds of objects that the operator and the command use, and where the API server has them."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any
from urllib.parse import quote

from rlhf_api.crd.definition import PLURAL
from rlhf_api.spec.job import API_VERSION, KIND


class Kind(Enum):
    """A namespaced kind of object: its group and version, its name, and its name in addresses."""

    JOB = (API_VERSION, KIND, PLURAL)
    CLUSTER = ("ray.io/v1", "RayCluster", "rayclusters")
    POD = ("v1", "Pod", "pods")
    CONFIG_MAP = ("v1", "ConfigMap", "configmaps")
    SECRET = ("v1", "Secret", "secrets")
    CLAIM = ("v1", "PersistentVolumeClaim", "persistentvolumeclaims")
    POLICY = ("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies")
    LEASE = ("coordination.k8s.io/v1", "Lease", "leases")
    EVENT = ("events.k8s.io/v1", "Event", "events")
    CORE_EVENT = ("v1", "Event", "events")
    """Events by their older API, as kubelets write them: they can be found by their object."""

    def __init__(self, api_version: str, kind: str, plural: str) -> None:
        self.api_version = api_version
        """Group and version, such as ray.io/v1; v1 for Kubernetes' own."""
        self.kind = kind
        """In the singular, as manifests write it: RayCluster."""
        self.plural = plural
        """As addresses write it: rayclusters."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> Kind:
        """The kind of an object that names it."""
        named = (manifest["apiVersion"], manifest["kind"])
        return next(each for each in cls if (each.api_version, each.kind) == named)

    @property
    def group(self) -> str:
        """Empty: the core group."""
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        """Without the group: v1."""
        return self.api_version.rpartition("/")[2]

    @property
    def resource(self) -> str:
        """What RBAC calls it: rayclusters.ray.io, pods."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def header(self) -> dict[str, str]:
        """What every object of it says, and items of lists leave out."""
        return {"apiVersion": self.api_version, "kind": self.kind}

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """The address of one object, or of all of a namespace or (None) of the cluster.

        Args:
            part: a part of the object that is reached by itself, such as status.
        """
        root = "/apis/" if self.group else "/api/"
        place = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        tail = "".join(f"/{quote(each, safe='')}" for each in (name, part) if each)
        return f"{root}{self.api_version}{place}/{self.plural}{tail}"
