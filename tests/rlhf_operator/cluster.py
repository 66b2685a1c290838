"""A namespace of a real cluster in which an operator runs; pods and heads are pretended."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf_api.on_cluster import JOB_LABEL
from rlhf_api.reading.status import read_status
from rlhf_api.status import ConditionType, RLHFJobStatus
from rlhf_kube.api_server import ApiServer
from rlhf_kube.client import KubeClient
from rlhf_kube.kinds import Kind
from rlhf_kube.protocol import Manifest
from rlhf_operator.__main__ import CALLER

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .fake_head import FakeHead, FakeHeads
from .operator_process import OperatorProcess
from .world import manifest

SECONDS = 90.0
"""How long anything may take on a busy machine."""
NAMESPACE_SECONDS = 120.0
"""How long the deletion of a namespace with jobs may take."""
POLL_SECONDS = 0.5
CHILDREN = (Kind.CLUSTER, Kind.POD, Kind.CONFIG_MAP, Kind.SECRET, Kind.POLICY, Kind.BUDGET)
"""What is made for a job, by the operator or by KubeRay."""


def small(name: str, **spec: Any) -> dict[str, Any]:
    """A job with one worker of one GPU, which does not wait long after a failure."""
    pool = {"name": "gpu", "nodes": 1, "devicesPerNode": 1, "gpu": "A100-80G"}
    more = {"resources": {"nodePools": [pool]}, "failurePolicy": {"backoffSeconds": 1}}
    return manifest(name, **{**more, **spec})


@dataclass
class Team:
    """The namespace, seen by its users."""

    kubectl: Kubectl
    kube: KubeClient
    namespace: str
    heads: FakeHeads
    operator: OperatorProcess

    # What users do

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

    def evict(self, pod: str) -> None:
        """Ask for a pod's end as a drain does."""
        place = {"name": pod, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": place}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod}/eviction"
        self.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))

    def train(self, name: str, **spec: Any) -> FakeHead:
        """Submit a small job and let its first driver do a step."""
        self.submit(small(name, **spec))
        head = self.wait_for_driver(f"{name}-1-0")
        head.advance(1)
        self.wait_for("Running", name)
        return head

    # What users see

    def job(self, name: str = "sort") -> Manifest:
        found = self.kube.get(Kind.JOB, self.namespace, name)
        assert found is not None, f"no job {name}"
        return found

    def status(self, name: str = "sort") -> RLHFJobStatus:
        return read_status(self.job(name).get("status", {}))

    def phase(self, name: str = "sort") -> str:
        return self.status(name).phase

    def condition(self, name: str, type: ConditionType) -> tuple[str, str | None] | None:
        """Status and reason."""
        found = [each for each in self.status(name).conditions if each.type is type]
        return (found[0].status, found[0].reason) if found else None

    def wait_for(self, phase: str, name: str = "sort", seconds: float = SECONDS) -> None:
        self._wait(lambda: self.phase(name), phase, name, seconds)

    def wait_for_reason(self, reason: str, name: str) -> None:
        self._wait(lambda: self.status(name).reason, reason, name, SECONDS)

    def wait_for_condition(self, name: str, type: ConditionType, status: str, reason: str) -> None:
        self._wait(lambda: self.condition(name, type), (status, reason), name, SECONDS)

    def _wait(self, read: Any, wanted: object, name: str, seconds: float) -> None:
        try:
            wait_until(lambda: read() == wanted, seconds, str(wanted))
        except AssertionError as error:
            shown = json.dumps(self.job(name).get("status"), indent=1)
            raise AssertionError(f"{error}, but {name} is {shown}") from None

    def objects(self, kind: Kind, name: str | None = None) -> tuple[Manifest, ...]:
        """What was made for a job, or for all."""
        label = JOB_LABEL if name is None else f"{JOB_LABEL}={name}"
        return self.kube.list(kind, self.namespace, label)

    def names(self, kind: Kind, name: str | None = None) -> list[str]:
        return [each["metadata"]["name"] for each in self.objects(kind, name)]

    def left(self, name: str | None = None) -> list[str]:
        """Everything that was made for a job and is there."""
        found = [f"{kind.plural}/{each}" for kind in CHILDREN for each in self.names(kind, name)]
        return sorted(found)

    def pod(self, name: str, role: str) -> Manifest | None:
        """The pod of a job that is there to stay."""
        for each in self.objects(Kind.POD, name):
            metadata = each["metadata"]
            if metadata["labels"]["ray.io/node-type"] == role and (
                "deletionTimestamp" not in metadata
            ):
                return each
        return None

    def events(self, name: str) -> list[str]:
        """Reasons of the events about a job."""
        events = self.kube.list(Kind.EVENT, self.namespace)
        return [each["reason"] for each in events if each["regarding"]["name"] == name]

    def wait_for_driver(self, id: str) -> FakeHead:
        """The head to which this driver was submitted."""
        head = self.heads.head(self.namespace, id.rpartition("-")[0])
        wait_until(lambda: id in head.submissions, SECONDS, f"the submission {id}")
        return head

    def wait_for_rest(self, name: str) -> None:
        """Until a job has neither clusters nor pods."""
        wait_until(
            lambda: not self.names(Kind.CLUSTER, name) and not self.names(Kind.POD, name),
            SECONDS,
            f"no cluster of {name}",
        )


@contextmanager
def a_team(
    kubectl: Kubectl,
    folder: Path,
    heads: FakeHeads | None = None,
    *,
    constants: Mapping[str, float] | None = None,
    program: tuple[str, ...] = (),
    **settings: Any,
) -> Iterator[Team]:
    """A namespace with a claim, an operator that manages it, and nothing of it afterwards. It
    takes only pods that meet the restricted profile.

    Args:
        heads: what plays the heads. Default: drivers that a test directs.
        constants: values of the operator's constants, by `module:NAME`.
        program: see OperatorProcess.
        settings: of the operator, besides those that it needs here.
    """
    namespace = f"team-{uuid.uuid4().hex[:8]}"
    kubectl("create", "namespace", namespace)
    kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    for made in shared_claim(namespace):
        kubectl.apply(namespace, made)
    kubectl.get(namespace, "rlhfjobs")  # it is patient with a kind that was defined just now
    server = ApiServer.from_kubeconfig((kubectl.kubeconfig,), None, CALLER.name, 4)
    kube = KubeClient(server, CALLER, namespace)
    with heads or FakeHeads() as heads:
        own = {
            "namespaces": [namespace],
            "headAccess": "template",
            "headUrl": heads.template,
            "pollSeconds": POLL_SECONDS,
        }
        operator = OperatorProcess(
            *(kubectl.kubeconfig, folder / "operator", {**own, **settings}),
            constants=constants or {},
            program=program,
        )
        team = Team(kubectl, kube, namespace, heads, operator)
        try:
            operator.start()
            yield team
        finally:
            _end(team)


def _end(team: Team) -> None:
    if team.operator.process is not None:
        team.operator.stop()
    team.kube.close()
    team.kubectl("delete", "namespace", team.namespace, "--wait=false")
    team.kubectl("delete", "persistentvolume", f"shared-{team.namespace}", "--wait=false")


def delete_namespace(kubectl: Kubectl, namespace: str) -> None:
    """Delete a namespace, and wait until it is gone."""
    kubectl("delete", "namespace", namespace, "--wait=false")
    words = ("get", "namespace", namespace, "--ignore-not-found")
    wait_until(lambda: kubectl(*words) == "", NAMESPACE_SECONDS, f"no namespace {namespace}")


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
