"""What every object has that the operator makes for a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.on_cluster import FIELD_MANAGER, JOB_LABEL
from rlhf_api.spec.job import API_VERSION, KIND

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Owner:
    """The RLHFJob that objects are made for; they go with it."""

    namespace: str
    name: str
    uid: str

    @property
    def children(self) -> str:
        """How the names of what stands beside its clusters begin: unlike those of any other job,
        also of one that had this name before."""
        return f"{self.name}-{self.uid[:8]}"

    @property
    def labels(self) -> dict[str, str]:
        """By which its objects are found."""
        return {JOB_LABEL: self.name, MANAGED_BY_LABEL: FIELD_MANAGER}

    def metadata(self, name: str, **more: Any) -> Mapping[str, Any]:
        """Of an object that it owns."""
        return {
            "name": name,
            "namespace": self.namespace,
            "labels": self.labels,
            "ownerReferences": [
                {
                    "apiVersion": API_VERSION,
                    "kind": KIND,
                    "name": self.name,
                    "uid": self.uid,
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            **more,
        }
