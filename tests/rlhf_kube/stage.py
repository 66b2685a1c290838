"""A namespace of a Kubernetes, real or fake, and what somebody else does in it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rlhf_kube.api_server import ApiServer
from rlhf_kube.client import KubeClient
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Caller, Cluster, Manifest

from ..cluster.kubectl import Kubectl
from ..rlhf_cli.cluster.objects import submission
from .fake_kube import MANAGER, FakeKube

CALLER = Caller(MANAGER, "you", answer_seconds=30.0)
SECONDS = 90.0
"""Time limit for the API server and its controllers on a busy machine."""
FINALIZER = "example.com/finalizer"


@contextmanager
def admin(kubectl: Kubectl, namespace: str = "default") -> Iterator[KubeClient]:
    """The client as the cluster's administrator."""
    server = ApiServer.from_kubeconfig((kubectl.kubeconfig,), None, CALLER.name, 2)
    client = KubeClient(server, CALLER, namespace)
    try:
        yield client
    finally:
        client.close()


@dataclass
class Stage:
    """A namespace, and what somebody else does in it."""

    kube: Cluster = field(default_factory=FakeKube)
    kubectl: Kubectl | None = None
    """None: a fake Kubernetes."""

    @property
    def namespace(self) -> str:
        return self.kube.namespace

    def job(self, name: str = "sort", spec: Mapping[str, Any] = {}, **meta: Any) -> dict[str, Any]:
        document = submission(name, self.namespace, **spec)
        return {**document, "metadata": {**document["metadata"], **meta}}

    def config_map(self, name: str = "map", **metadata: Any) -> dict[str, Any]:
        names = {"name": name, "namespace": self.namespace}
        return {**Kind.CONFIG_MAP.header, "metadata": {**names, **metadata}}

    def of_job(self, name: str = "sort", **fields: Any) -> dict[str, Any]:
        """The operator's fields of a job, and no others."""
        metadata = {"name": name, "namespace": self.namespace, **fields.pop("metadata", {})}
        return {**Kind.JOB.header, "metadata": metadata, **fields}

    def read(self, kind: Kind, name: str) -> Manifest:
        stored = self.kube.get(kind, self.namespace, name)
        assert stored is not None, f"no {kind} {name}"
        return stored

    def uid(self, kind: Kind, name: str) -> str:
        return str(self.read(kind, name)["metadata"]["uid"])

    def names(self, kind: Kind, labels: str = "", fields: str = "") -> list[str]:
        items = self.kube.list(kind, self.namespace, labels, fields)
        names = [str(item["metadata"]["name"]) for item in items]
        return [name for name in names if name != "kube-root-ca.crt"]

    def suspend(self, name: str) -> Manifest:
        return self.kube.merge(Kind.JOB, self.namespace, name, {"spec": {"suspend": True}})

    def label(self, kind: Kind, name: str, labels: Mapping[str, str]) -> None:
        """Somebody else labels an object."""
        if self.kubectl is not None:
            pairs = [f"{label}={value}" for label, value in labels.items()]
            self.kubectl("label", f"--namespace={self.namespace}", kind.plural, name, *pairs)
            return
        assert isinstance(self.kube, FakeKube)

        def change(stored: dict[str, Any]) -> None:
            stored["metadata"]["labels"] = {**stored["metadata"].get("labels", {}), **labels}

        self.kube.edit(kind, self.namespace, name, change)
