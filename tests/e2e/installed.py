"""The operator as users install it: the chart, by Helm, in a namespace of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ..charts.helm import CHART, Helm
from ..cluster.kubectl import Kubectl

RELEASE = "rlhf-operator"
NAMESPACE = "rlhf-system"
"""Always the same: the definition of RLHFJobs stays, and belongs to this release."""
VALUES = Path(__file__).parents[2] / "examples" / "one-machine" / "values.yaml"
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
def installed(helm: Helm, kubectl: Kubectl) -> Iterator[InstalledOperator]:
    """Install it in a namespace that takes only pods of the standard "restricted"; remove it."""
    kubectl("create", "namespace", NAMESPACE)
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    place = f"--namespace={NAMESPACE}"
    waiting = ("--wait", f"--timeout={START_SECONDS}s")
    try:
        helm("install", RELEASE, str(CHART), place, f"--values={VALUES}", *waiting)
        yield InstalledOperator(helm)
    finally:
        uninstall(helm, kubectl)


def uninstall(helm: Helm, kubectl: Kubectl) -> None:
    """Remove it and its namespace, whoever installed it."""
    waiting = ("--wait", f"--timeout={START_SECONDS}s")
    helm("uninstall", RELEASE, f"--namespace={NAMESPACE}", "--ignore-not-found", *waiting)
    kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found", f"--timeout={START_SECONDS}s")
