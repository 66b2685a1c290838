"""What is edited is what runs, at a real API server with its rules about what may change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlhf_kube.kinds import Kind

from ..cluster.devcluster import CommandFailed
from ..cluster.kubectl import Kubectl
from .cluster import Team, a_team, small

pytestmark = pytest.mark.cluster


def manifest_of(team: Team, cluster: str) -> dict[str, Any]:
    """The manifest that the pods of a cluster mount."""
    made = team.kube.get(Kind.CLUSTER, team.namespace, cluster)
    assert made is not None
    volumes = made["spec"]["headGroupSpec"]["template"]["spec"]["volumes"]
    (name,) = [each["configMap"]["name"] for each in volumes if each["name"] == "job"]
    mounted = team.kube.get(Kind.CONFIG_MAP, team.namespace, name)
    assert mounted is not None and mounted["immutable"] is True
    manifest: dict[str, Any] = yaml.safe_load(mounted["data"]["job.yaml"])
    return manifest


def test_an_edit_is_acted_on_that_was_made_while_the_operator_was_away(team: Team) -> None:
    head = team.train("edited")
    team.operator.kill()
    with pytest.raises(CommandFailed, match="only while the job is suspended"):
        team.edit("edited", schedule={"steps": 20})
    team.edit("edited", suspend=True)
    team.edit("edited", schedule={"steps": 20})
    team.edit("edited", suspend=False)
    team.operator.start()
    again = team.wait_for_driver("edited-2-0")
    assert head.submissions["edited-1-0"].stops == 1
    assert manifest_of(team, "edited-2")["spec"]["schedule"]["steps"] == 20
    assert team.status("edited").restarts.total == 0
    again.advance(1)
    team.wait_for("Running", "edited")
    again.finish()
    team.wait_for("Succeeded", "edited")
    team.delete("rlhfjob", "edited")


def test_a_job_keeps_the_defaults_of_its_acceptance(defined: Kubectl, tmp_path: Path) -> None:
    first, second = ({"image": {"runtime": f"runtime:{number}"}} for number in (1, 2))
    with a_team(defined, tmp_path, jobDefaults=first) as team:
        job = small("kept")
        del job["spec"]["image"]
        team.submit(job)
        team.wait_for_driver("kept-1-0")
        team.operator.stop()
        settings = {**team.operator.settings, "jobDefaults": second}
        team.operator = replace(team.operator, settings=settings, process=None)
        team.operator.start()
        team.edit("kept", suspend=True)
        team.wait_for("Suspended", "kept")
        team.edit("kept", suspend=False)
        team.wait_for_driver("kept-2-0")
        assert manifest_of(team, "kept-2")["spec"]["image"] == {"runtime": "runtime:1"}
        pinned = team.status("kept").defaults
        assert pinned is not None and pinned.image is not None
        assert pinned.image.runtime == "runtime:1"
