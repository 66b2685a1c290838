"""A namespace of a real cluster in which an operator runs; pods and heads are pretended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.status import ConditionType, RLHFJobStatus
from rlhf_operator.parse import parse_status

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .fake_head import FakeHead, FakeHeads
from .operator_process import OperatorProcess

SECONDS = 90.0
"""How long anything may take on a busy machine."""


@dataclass
class Team:
    """The namespace, seen by its users."""

    kubectl: Kubectl
    namespace: str
    heads: FakeHeads
    operator: OperatorProcess

    def submit(self, manifest: Mapping[str, Any]) -> None:
        document = {**manifest, "metadata": {**manifest["metadata"], "namespace": self.namespace}}
        self.kubectl.apply(self.namespace, document)

    def edit(self, name: str, **spec: Any) -> None:
        """Change a job's spec."""
        place = (f"--namespace={self.namespace}", "rlhfjob", name)
        self.kubectl("patch", *place, "--type=merge", f"--patch={json.dumps({'spec': spec})}")

    def delete(self, kind: str, name: str) -> None:
        """Ask for an object's end; it may take a while."""
        self.kubectl("delete", f"--namespace={self.namespace}", kind, name, "--wait=false")

    def status(self, name: str = "sort") -> RLHFJobStatus:
        return parse_status(self.kubectl.get(self.namespace, "rlhfjob", name).get("status", {}))

    def phase(self, name: str = "sort") -> str:
        return self.status(name).phase.value

    def condition(self, name: str, type: ConditionType) -> tuple[str, str | None] | None:
        """Status and reason."""
        found = [each for each in self.status(name).conditions if each.type is type]
        return (found[0].status.value, found[0].reason) if found else None

    def wait_for(self, phase: str, name: str = "sort", seconds: float = SECONDS) -> None:
        wait_until(
            lambda: self.phase(name) == phase,
            seconds,
            f"{phase}, but {name} is {self.phase(name)}",
        )

    def names(self, kind: str) -> list[str]:
        items = self.kubectl.get(self.namespace, kind)["items"]
        return [each["metadata"]["name"] for each in items]

    def wait_for_driver(self, id: str) -> FakeHead:
        """The head to which this driver was submitted."""
        head = self.heads.head(self.namespace, id.rpartition("-")[0])
        wait_until(lambda: id in head.submissions, SECONDS, f"the submission {id}")
        return head


@contextmanager
def a_team(kubectl: Kubectl, folder: Path, **settings: Any) -> Iterator[Team]:
    """A namespace with a claim, an operator that looks after it, and nothing of it afterwards."""
    namespace = f"team-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", namespace)
    for made in shared_claim(namespace):
        kubectl.apply(namespace, made)
    kubectl.get(namespace, "rlhfjobs")  # it is patient with a kind that was defined just now
    with FakeHeads() as heads:
        own = {
            "namespaces": [namespace],
            "headAccess": "template",
            "headUrl": heads.template,
            "pollSeconds": 0.5,
        }
        operator = OperatorProcess(kubectl.kubeconfig, folder / "operator", {**own, **settings})
        team = Team(kubectl, namespace, heads, operator)
        try:
            operator.start()
            yield team
        finally:
            _end(team)


def _end(team: Team) -> None:
    """The operator lives until its last job is gone: it holds finalizers."""
    place = f"--namespace={team.namespace}"
    team.kubectl("delete", "rlhfjobs", "--all", place, f"--timeout={SECONDS:.0f}s")
    team.operator.stop()
    team.kubectl("delete", "namespace", team.namespace, "--wait=false")
    team.kubectl("delete", "persistentvolume", f"shared-{team.namespace}", "--wait=false")


def shared_claim(namespace: str) -> list[dict[str, object]]:
    """A volume and the claim that it is bound to."""
    volume = f"shared-{namespace}"
    size = {"storage": "1Gi"}
    modes = ["ReadWriteMany"]
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": volume},
            "spec": {
                "capacity": size,
                "accessModes": modes,
                "hostPath": {"path": "/nonexistent"},
                "storageClassName": "",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "shared"},
            "spec": {
                "accessModes": modes,
                "storageClassName": "",
                "volumeName": volume,
                "resources": {"requests": size},
            },
        },
    ]
