"""Where a test installs the chart in a real cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

from ..cluster.kubectl import Kubectl
from .helm import CHART, RELEASE, Helm, values_file


@dataclass(frozen=True)
class Place:
    """Namespaces of one test, and what installs there."""

    helm: Helm
    kubectl: Kubectl
    system: str
    """Where the operator is; only pods of the restricted profile are let in."""
    team_a: str
    team_b: str
    other: str
    """Not watched when the operator has a list of namespaces."""

    def arguments(self, case: str, chart: str = str(CHART)) -> list[str]:
        """Words for helm: release, chart, and a case with this place's namespaces."""
        words = [RELEASE, chart, "--namespace", self.system, "--values", str(values_file(case))]
        if case == "namespaces":
            words += ["--set", f"watchNamespaces={{{self.team_a},{self.team_b}}}"]
        return words


def own_place(helm: Helm, kubectl: Kubectl) -> Iterator[Place]:
    """A place that is gone at the end, with everything that Helm leaves in it."""
    names = [f"{kind}-{uuid4().hex[:8]}" for kind in ("system", "team-a", "team-b", "other")]
    place = Place(helm, kubectl, *names)
    kubectl("create", "--filename=-", stdin="---\n".join(map(_namespace, names)))
    yield place
    kubectl("delete", "namespace", *names, "--wait=false")


def _namespace(name: str) -> str:
    profile = "pod-security.kubernetes.io/enforce: restricted"
    head = "apiVersion: v1\nkind: Namespace\n"
    return f"{head}metadata: {{name: {name}, labels: {{{profile}}}}}\n"
