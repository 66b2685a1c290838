"""The kinds of objects that the commands read and write, and where the API server has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rlhf_api.crd import PLURAL
from rlhf_api.job import API_VERSION, KIND


@dataclass(frozen=True)
class Kind:
    """A namespaced kind of object."""

    api_version: str
    """Group and version, such as ray.io/v1; v1 for Kubernetes' own."""
    name: str
    """In the singular, as manifests write it: RayCluster."""
    plural: str
    """As addresses write it: rayclusters."""

    @property
    def resource(self) -> str:
        """What RBAC calls it: rayclusters.ray.io, pods."""
        group, _, version = self.api_version.rpartition("/")
        return f"{self.plural}.{group}" if group and version else self.plural

    def path(self, namespace: str | None, name: str = "", part: str = "") -> str:
        """The address of one object, or of all of a namespace or (None) of the cluster.

        Args:
            part: a part of the object that is reached by itself, such as exec.
        """
        root = "/api/" if "/" not in self.api_version else "/apis/"
        place = "" if namespace is None else f"/namespaces/{quote(namespace, safe='')}"
        tail = "".join(f"/{quote(each, safe='')}" for each in (name, part) if each)
        return f"{root}{self.api_version}{place}/{self.plural}{tail}"


RLHFJOB: Final = Kind(API_VERSION, KIND, PLURAL)
RAY_CLUSTER: Final = Kind("ray.io/v1", "RayCluster", "rayclusters")
POD: Final = Kind("v1", "Pod", "pods")
EVENT: Final = Kind("v1", "Event", "events")
CONFIG_MAP: Final = Kind("v1", "ConfigMap", "configmaps")
