"""A job that runs on the cluster, as its user sees and troubles it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rlhf_api.status import JobPhase, RLHFJobStatus

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until

Seen = Callable[[RLHFJobStatus], bool]
"""Whether a status says something."""
ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)


@dataclass(frozen=True)
class JobOnCluster:
    """A job by its name."""

    kubectl: Kubectl
    namespace: str
    name: str

    @property
    def status(self) -> RLHFJobStatus:
        """What the operator says of it now."""
        found = self.kubectl.get(self.namespace, f"rlhfjob/{self.name}")
        return RLHFJobStatus.model_validate(found.get("status") or {})

    @property
    def step(self) -> int:
        """Steps done, as far as they were reported."""
        progress = self.status.progress
        return progress.step if progress else 0

    def columns(self) -> dict[str, str]:
        """What `kubectl get` prints of it, by the heads of the columns."""
        words = ("get", "rlhfjob", self.name, f"--namespace={self.namespace}")
        head, values = self.kubectl(*words).splitlines()
        return dict(zip(head.split(), values.split(), strict=True))

    def events(self) -> list[Any]:
        """Kubernetes' events about it, the oldest first."""
        about = f"--field-selector=involvedObject.kind=RLHFJob,involvedObject.name={self.name}"
        found = self.kubectl.get(self.namespace, "events", about)["items"]
        return sorted(found, key=lambda each: str(each["eventTime"]))

    def pods(self, kind: str = "") -> list[Any]:
        """Its cluster's pods; only its head or its workers."""
        labels = f"rlhf-operator.dev/job={self.name}" + (f",ray.io/node-type={kind}" * bool(kind))
        return list(self.kubectl.get(self.namespace, "pods", f"--selector={labels}")["items"])

    def evict(self, kind: str) -> None:
        """Evict its only pod of a kind, as `kubectl drain` does."""
        (pod,) = self.pods(kind)
        name = pod["metadata"]["name"]
        place = {"name": name, "namespace": self.namespace}
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": place}
        path = f"/api/v1/namespaces/{self.namespace}/pods/{name}/eviction"
        self.kubectl("create", f"--raw={path}", "--filename=-", stdin=json.dumps(eviction))

    def delete_pods_by_force(self) -> None:
        """What somebody does who takes their node for dead."""
        labels = f"--selector=rlhf-operator.dev/job={self.name}"
        namespace = f"--namespace={self.namespace}"
        self.kubectl("delete", "pods", namespace, labels, "--force", "--grace-period=0")

    def edit(self, **spec: Any) -> None:
        """Change its spec."""
        words = ("patch", "rlhfjob", self.name, f"--namespace={self.namespace}", "--type=merge")
        self.kubectl(*words, f"--patch={json.dumps({'spec': spec})}")

    def until(self, holds: Seen, seconds: float, what: str) -> None:
        """Wait until its status says something; fails at once if it has ended or is refused."""

        def looked() -> bool:
            status = self.status
            is_hopeless = status.phase in ENDED or status.reason == "InvalidManifest"
            assert holds(status) or not is_hopeless, f"{what}: {status.phase}, {status.reason}"
            return holds(status)

        try:
            wait_until(looked, seconds, f"{self.name}: {what}")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story()}\n{self.pods_story()}") from None

    def pods_story(self) -> str:
        """How its pods do, and what was said of them."""
        namespace = f"--namespace={self.namespace}"
        words = ("get", "events", namespace, "--field-selector=type=Warning")
        return self.kubectl("get", "pods", namespace, "--output=wide") + self.kubectl(*words)

    def story(self) -> str:
        """What became of it, for the message of a test that failed."""
        lines = [
            f"{each['eventTime']} {each['reason']}: {each['message']}" for each in self.events()
        ]
        return "\n".join([self.status.model_dump_json(indent=2), *lines])
