"""The operator at a real API server with KubeRay; kwok plays the kubelets."""

from __future__ import annotations

import pytest
import yaml

from rlhf_api.on_cluster import MANIFEST
from rlhf_api.reading.validation import validate_document
from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind

from ..cluster.devcluster import CommandFailed
from ..waiting import wait_until
from .cluster import SECONDS, Team, small
from .world import manifest

pytestmark = pytest.mark.cluster


def test_a_job_trains_and_succeeds(team: Team) -> None:
    team.submit(manifest())
    head = team.wait_for_driver("sort-1-0")
    head.advance(3, checkpoint=2, metrics={"reward/mean": 0.25})
    team.wait_for("Running")
    wait_until(lambda: team.status().progress is not None, SECONDS, "progress")
    words = ("get", "rlhf", "sort", f"--namespace={team.namespace}")
    header, line = (row.split() for row in team.kubectl(*words).splitlines())
    assert header == ["NAME", "PHASE", "STEP", "STEPS", "REWARD", "GPUS", "RESTARTS", "AGE"]
    assert line[:7] == ["sort", "Running", "3", "10", "0.25", "8", "0"]
    head.finish()
    team.wait_for("Succeeded")
    team.wait_for_rest("sort")
    assert team.status().gpus == 0
    assert head.submitted == ["sort-1-0"] and head.submissions["sort-1-0"].acknowledged is not None


def test_a_suspended_job_holds_nothing_and_goes_on_with_another_cluster(team: Team) -> None:
    head = team.train("waits")
    team.edit("waits", suspend=True)
    team.wait_for("Suspended", "waits")
    team.wait_for_rest("waits")
    assert head.submissions["waits-1-0"].stops == 1
    assert team.condition("waits", ConditionType.SUSPENDED) == ("True", "Requested")
    team.edit("waits", suspend=False)
    again = team.wait_for_driver("waits-2-0")
    again.advance(1)
    team.wait_for("Running", "waits")
    assert team.names(Kind.CLUSTER, "waits") == ["waits-2"]
    again.finish()
    team.wait_for("Succeeded", "waits")


def test_deleting_a_running_job_leaves_nothing(team: Team) -> None:
    head = team.train("unwanted")
    kinds = {each.partition("/")[0] for each in team.left("unwanted")}
    assert kinds == {"rayclusters", "pods", "configmaps", "secrets", "networkpolicies"}
    team.delete("rlhfjob", "unwanted")
    wait_until(
        lambda: team.kube.get(Kind.JOB, team.namespace, "unwanted") is None, SECONDS, "no job"
    )
    wait_until(lambda: team.left("unwanted") == [], SECONDS, "nothing left")
    assert head.submitted == ["unwanted-1-0"]


def test_a_job_made_anew_with_the_same_name_is_another_one(team: Team) -> None:
    first = team.train("again")
    uid = team.job("again")["metadata"]["uid"]
    team.delete("rlhfjob", "again")
    wait_until(lambda: team.kube.get(Kind.JOB, team.namespace, "again") is None, SECONDS, "no job")
    first.restart()
    first.token = None  # another head, with another token
    team.submit(small("again"))
    head = team.wait_for_driver("again-1-0")
    head.advance(1)
    team.wait_for("Running", "again")
    assert team.job("again")["metadata"]["uid"] != uid
    assert head.submitted == ["again-1-0"] * 2
    head.finish()
    team.wait_for("Succeeded", "again")


def test_the_cluster_is_kept_for_its_time_after_the_end(team: Team) -> None:
    head = team.train("kept", ttlSecondsAfterFinished=3600)
    head.finish()
    team.wait_for("Succeeded", "kept")
    wait_until(
        lambda: head.submissions["kept-1-0"].acknowledged is not None, SECONDS, "an acknowledgement"
    )
    assert team.names(Kind.CLUSTER, "kept") == ["kept-1"] and team.status("kept").gpus == 1
    team.edit("kept", ttlSecondsAfterFinished=0)
    team.wait_for_rest("kept")
    assert team.phase("kept") == "Succeeded" and team.status("kept").gpus == 0


def test_the_clusters_manifest_has_the_operators_defaults(team: Team) -> None:
    team.train("manifested")
    (made,) = team.objects(Kind.CONFIG_MAP, "manifested")
    (text,) = made["data"].values()
    assert list(made["data"]) == [MANIFEST.rpartition("/")[2]]
    job, problems = validate_document(yaml.safe_load(text))
    assert problems == [] and job is not None
    assert job.spec.resources.head.memory == "4Gi" and job.metadata.name == "manifested"
    team.delete("rlhfjob", "manifested")


def test_what_a_running_job_is_about_cannot_change(team: Team) -> None:
    team.train("fixed")
    with pytest.raises(CommandFailed, match="schedule"):
        team.edit("fixed", schedule={"steps": 20})
    with pytest.raises(CommandFailed, match="algorithm"):
        team.edit("fixed", algorithm={"type": "PPO"})
    team.edit("fixed", failurePolicy={"maxRestarts": 7})
    wait_until(
        lambda: team.status("fixed").observed_generation == 2, SECONDS, "the change being seen"
    )
    assert team.phase("fixed") == "Running"
    team.delete("rlhfjob", "fixed")
