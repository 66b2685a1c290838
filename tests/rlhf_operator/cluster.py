"""A namespace of a real cluster in which an operator runs; pods and heads are pretended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlhf_api.status import RLHFJobStatus
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

    def status(self, name: str = "sort") -> RLHFJobStatus:
        return parse_status(self.kubectl.get(self.namespace, "rlhfjob", name).get("status", {}))

    def phase(self, name: str = "sort") -> str:
        return self.status(name).phase.value

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
