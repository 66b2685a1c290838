"""The operator at a real API server with KubeRay; kwok plays the kubelets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS, Team
from .fake_head import FakeHeads
from .operator_process import OperatorProcess
from .world import manifest

pytestmark = pytest.mark.cluster


@pytest.fixture
def team(defined: Kubectl, kubeconfig: Path, namespace: str, tmp_path: Path) -> Iterator[Team]:
    """A namespace with a claim, and an operator that looks after it."""
    for made in shared_claim(namespace):
        defined.apply(namespace, made)
    with FakeHeads() as heads:
        settings = {
            "namespaces": [namespace],
            "headAccess": "template",
            "headUrl": heads.template,
            "pollSeconds": 0.5,
        }
        operator = OperatorProcess(kubeconfig, tmp_path / "operator", settings)
        operator.start()
        try:
            yield Team(defined, namespace, heads, operator)
        finally:
            if operator.process is not None:
                operator.stop()


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


def test_a_job_trains_and_succeeds(team: Team) -> None:
    team.submit(manifest())
    head = team.wait_for_driver("sort-1-0")
    head.advance(3, checkpoint=2, metrics={"reward/mean": 0.25})
    team.wait_for("Running")
    wait_until(lambda: team.status().progress is not None, SECONDS, "progress")
    shown = team.kubectl("get", "rlhf", f"--namespace={team.namespace}", "--no-headers").split()
    assert shown[:5] == ["sort", "Running", "3", "0.25", "8"]
    head.finish()
    team.wait_for("Succeeded")
    wait_until(lambda: team.names("rayclusters") == [], SECONDS, "no cluster")
    wait_until(lambda: team.names("pods") == [], SECONDS, "no pod")
    job = team.kubectl.get(team.namespace, "rlhfjob", "sort")
    assert "finalizers" not in job["metadata"]
