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
    assert header == ["NAME", "PHASE", "STEP", "STEPS", "REWARD", "GPUS", "BUSY", "RESTARTS", "AGE"]
    assert line[:8] == ["sort", "Running", "3", "10", "0.25", "8", "8", "0"]
    head.finish()
    team.wait_for("Succeeded")
    team.wait_for_rest("sort")
    wait_until(lambda: team.status().gpus == 0, SECONDS, "its GPUs in the status")
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
    resources = {**small("unwanted")["spec"]["resources"], "evictable": False}
    head = team.train("unwanted", resources=resources)
    kinds = {each.partition("/")[0] for each in team.left("unwanted")}
    beside = {"configmaps", "secrets", "networkpolicies", "poddisruptionbudgets"}
    assert kinds == {"rayclusters", "pods"} | beside
    for pod in team.names(Kind.POD, "unwanted"):
        with pytest.raises(CommandFailed, match="Cannot evict pod"):
            team.evict(pod)
    team.delete("rlhfjob", "unwanted")
    wait_until(
        lambda: team.kube.get(Kind.JOB, team.namespace, "unwanted") is None, SECONDS, "no job"
    )
    wait_until(lambda: team.left("unwanted") == [], SECONDS, "nothing left")
    assert head.submitted == ["unwanted-1-0"]


def test_the_cluster_is_kept_for_its_time_after_the_end(team: Team) -> None:
    head = team.train("kept", ttlSecondsAfterFinished=3600)
    head.finish()
    team.wait_for("Succeeded", "kept")
    wait_until(
        lambda: head.submissions["kept-1-0"].acknowledged is not None, SECONDS, "an acknowledgement"
    )
    # KubeRay deletes the workers.
    wait_until(lambda: team.status("kept").gpus == 0, SECONDS, "its device")
    assert team.names(Kind.CLUSTER, "kept") == ["kept-1"]
    (head_pod,) = team.names(Kind.POD, "kept")
    assert "-head-" in head_pod
    team.edit("kept", ttlSecondsAfterFinished=0)
    team.wait_for_rest("kept")
    assert team.phase("kept") == "Succeeded"


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
    checkpoint = team.job("fixed")["spec"]["checkpoint"]
    with pytest.raises(CommandFailed, match="but for checkpoint.start"):
        team.edit("fixed", checkpoint={**checkpoint, "start": "Fresh", "keepLast": 9})
    fresh = {**checkpoint, "start": "Fresh"}
    team.edit("fixed", checkpoint=fresh, failurePolicy={"maxRestarts": 7})
    wait_until(
        lambda: team.status("fixed").observed_generation == 2, SECONDS, "the change being seen"
    )
    assert team.phase("fixed") == "Running"
    team.delete("rlhfjob", "fixed")
