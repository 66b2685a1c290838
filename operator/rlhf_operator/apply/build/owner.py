"""Metadata of every object that the operator creates for a job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.on_cluster import FIELD_MANAGER, JOB_LABEL

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Owner:
    """The RLHFJob that owns objects; Kubernetes deletes them with it."""

    namespace: str
    name: str
    uid: str

    @property
    def name_prefix(self) -> str:
        """Prefix of owned objects' names, unique also among earlier jobs of this name."""
        return f"{self.name}-{self.uid[:8]}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of all its objects."""
        return {JOB_LABEL: self.name, MANAGED_BY_LABEL: FIELD_MANAGER}

    def metadata(self, name: str, **more: Any) -> Mapping[str, Any]:
        """Return the metadata of an owned object."""
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
                    # One controller at most: no other operator adopts the object.
                    "controller": True,
                    "blockOwnerDeletion": True,
                }
            ],
            **more,
        }
