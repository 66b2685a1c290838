"""The operator at a real API server with KubeRay; kwok plays the kubelets."""

from __future__ import annotations

import pytest

from ..waiting import wait_until
from .cluster import SECONDS, Team
from .world import manifest

pytestmark = pytest.mark.cluster


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
