"""The operator as users install it: the chart, by Helm, in a namespace of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from ..charts.helm import CHART, Helm
from ..cluster.kubectl import Kubectl
from .volume import CLAIM

RELEASE = "rlhf-operator"
NAMESPACE = "rlhf-system"
"""Always the same: the definition of RLHFJobs stays, and belongs to this release."""
START_SECONDS = 240


def values() -> dict[str, Any]:
    """The chart's values for a small node without a registry."""
    version = metadata.version("rlhf-operator")
    pool = {"name": "cpu", "device": "cpu", "devicesPerNode": 1, "memoryGibibytesPerDevice": 6}
    return {
        "image": {"repository": "localhost/rlhf-operator", "tag": version},
        "jobDefaults": {
            "image": {"runtime": f"localhost/rlhf-runtime:{version}-cpu"},
            "nodePools": [{**pool, "resources": {"cpu": "500m", "memory": "6Gi"}}],
            "storage": {"persistentVolumeClaim": {"claimName": CLAIM}},
            "head": {"cpu": "500m", "memory": "3Gi"},
        },
    }


@dataclass(frozen=True)
class InstalledOperator:
    """A release of the chart that is ready."""

    helm: Helm

    def test(self) -> str:
        """What `helm test` says."""
        return self.helm("test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=120s")


@contextmanager
def installed(helm: Helm, kubectl: Kubectl, folder: Path) -> Iterator[InstalledOperator]:
    """Install it in a namespace that takes only pods of the standard "restricted"; remove it again.

    Args:
        folder: where a file of values may lie.
    """
    kubectl("create", "namespace", NAMESPACE)
    kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
    file = folder / "values.json"
    file.write_text(json.dumps(values()))
    place = f"--namespace={NAMESPACE}"
    waiting = ("--wait", f"--timeout={START_SECONDS}s")
    try:
        helm("install", RELEASE, str(CHART), place, f"--values={file}", *waiting)
        yield InstalledOperator(helm)
    finally:
        helm("uninstall", RELEASE, place, "--ignore-not-found", *waiting)
        kubectl("delete", "namespace", NAMESPACE, f"--timeout={START_SECONDS}s")
