"""A namespace of a Kubernetes, real or pretended, and what somebody else does in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlhf_kube.kinds import Kind
from rlhf_operator.clients.kube.protocol import Kube, Manifest

from ...cluster.kubectl import Kubectl
from ..cluster import small
from ..fake_kube import FakeKube

FINALIZER = "rlhf-operator.dev/cluster"
OTHER_FINALIZER = "example.com/other"


class Stage:
    """A namespace of a Kubernetes, and what somebody else does in it."""

    def __init__(self, kube: Kube, namespace: str) -> None:
        self.kube = kube
        self.namespace = namespace

    def job(self, name: str = "sort", **metadata: Any) -> dict[str, Any]:
        document = small(name)
        return {**document, "metadata": {"name": name, "namespace": self.namespace, **metadata}}

    def config_map(self, name: str = "map", **metadata: Any) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": name, "namespace": self.namespace, **metadata},
        }

    def of_job(self, name: str = "sort", **fields: Any) -> dict[str, Any]:
        """What the operator says of a job: this and nothing else."""
        metadata = {"name": name, "namespace": self.namespace, **fields.pop("metadata", {})}
        kind = {"apiVersion": "rlhf-operator.dev/v1alpha1", "kind": "RLHFJob"}
        return {**kind, "metadata": metadata, **fields}

    def read(self, kind: Kind, name: str) -> Manifest:
        found = self.kube.get(kind, self.namespace, name)
        assert found is not None, f"no {kind} {name}"
        return found

    def uid(self, kind: Kind, name: str) -> str:
        return str(self.read(kind, name)["metadata"]["uid"])

    def names(self, kind: Kind, selector: str = "") -> list[str]:
        found = self.kube.list(kind, self.namespace, selector)
        return [each["metadata"]["name"] for each in found]

    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        """Somebody else labels an object."""
        raise NotImplementedError


class FakeStage(Stage):
    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        assert isinstance(self.kube, FakeKube)

        def change(found: dict[str, Any]) -> None:
            found["metadata"]["labels"] = {**found["metadata"].get("labels", {}), **labels}

        self.kube.edit(kind, self.namespace, name, change)


class RealStage(Stage):
    def __init__(self, kube: Kube, namespace: str, kubectl: Kubectl) -> None:
        super().__init__(kube, namespace)
        self.kubectl = kubectl

    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        pairs = [f"{name}={value}" for name, value in labels.items()]
        place = f"--namespace={self.namespace}"
        self.kubectl("label", place, kind.plural, name, *pairs)
