"""The operator as users install it: the chart, by Helm, in a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..charts.helm import CHART, Helm
from ..cluster.kubectl import Kubectl

RELEASE = "rlhf-operator"
NAMESPACE = "rlhf-system"
"""Always the same: the definition of RLHFJobs stays, and belongs to this release."""
START_SECONDS = 240


@dataclass(frozen=True)
class InstalledOperator:
    """A release of the chart that is ready."""

    helm: Helm

    def test(self) -> str:
        """What `helm test` says."""
        return self.helm("test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=120s")

    def upgrade(self, change: str) -> None:
        """Change a value, which replaces the operator's pod; wait until the new one is ready."""
        place = (str(CHART), f"--namespace={NAMESPACE}", "--reuse-values", f"--set={change}")
        self.helm("upgrade", RELEASE, *place, "--wait", f"--timeout={START_SECONDS}s")


@contextmanager
def place_for_release(helm: Helm, kubectl: Kubectl) -> Iterator[None]:
    """A namespace that takes only pods of the standard "restricted"; removed with the release."""
    kubectl("create", "namespace", NAMESPACE)
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield
    finally:
        waiting = ("--wait", f"--timeout={START_SECONDS}s")
        helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--ignore-not-found", *waiting)
        kubectl("delete", "namespace", NAMESPACE, f"--timeout={START_SECONDS}s")
