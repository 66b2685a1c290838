"""Deletion of jobs and namespaces at a real API server with its garbage collector."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from rlhf_api.api_names import API_VERSION, KIND
from rlhf_api.on_cluster import JOB_LABEL
from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind
from rlhf_operator.apply.build.owner import Owner

from ..cluster.kubectl import Kubectl
from ..waiting import wait_until
from .cluster import SECONDS, Team, a_team, delete_namespace, shared_claim, small

pytestmark = pytest.mark.cluster
FINALIZER = "example.com/finalizer"
"""Of another controller."""


def delete(team: Team, name: str, *flags: str) -> None:
    place = f"--namespace={team.namespace}"
    team.kubectl("delete", place, "rlhfjob", name, "--wait=false", *flags)


def set_finalizers(team: Team, kind: Kind, name: str, *finalizers: str) -> None:
    """Replace the finalizers of an object."""
    patch = json.dumps({"metadata": {"finalizers": list(finalizers)}})
    place = (f"--namespace={team.namespace}", kind.plural, name)
    team.kubectl("patch", *place, "--type=merge", f"--patch={patch}")


def add_lasting_pod(team: Team, name: str) -> str:
    """Add a pod to a job's cluster that no kubelet ends."""
    head = team.pod(name, "head")
    assert head is not None
    metadata = {
        "name": f"{name}-lasts",
        "namespace": team.namespace,
        "labels": {JOB_LABEL: name},
        "ownerReferences": head["metadata"]["ownerReferences"],
        "finalizers": [FINALIZER],
    }
    spec = {**head["spec"], "nodeSelector": {"example.com/nowhere": "true"}}
    del spec["nodeName"]
    team.kube.create({**Kind.POD.header, "metadata": metadata, "spec": spec})
    return str(metadata["name"])


def is_gone(team: Team, name: str) -> bool:
    return team.kube.get(Kind.JOB, team.namespace, name) is None


def step(team: Team, name: str) -> int:
    """Return the last step in a job's status."""
    progress = team.status(name).progress
    return progress.step if progress else 0


def wait_for_nothing(team: Team, name: str) -> None:
    wait_until(lambda: is_gone(team, name), SECONDS, "no job")
    wait_until(lambda: team.left(name) == [], SECONDS, "nothing of the job")


def test_a_job_that_is_deleted_in_the_foreground_gets_nothing_new(team: Team) -> None:
    head = team.train("slowly")
    set_finalizers(team, Kind.CLUSTER, "slowly-1", FINALIZER)
    delete(team, "slowly", "--cascade=foreground")
    wait_until(lambda: team.names(Kind.POD, "slowly") == [], SECONDS, "no pods")
    reconciles = 'rlhf_operator_reconcile_seconds_count{outcome="done"}'
    before = team.operator.metric(reconciles)
    place = (f"--namespace={team.namespace}", "rlhfjob", "slowly")
    team.kubectl("annotate", *place, "example.com/again=please")
    wait_until(lambda: team.operator.metric(reconciles) > before, SECONDS, "a reconcile")
    status = team.status("slowly")
    assert (status.phase, status.restarts.total, status.attempts) == ("Running", 0, 1)
    assert not is_gone(team, "slowly") and team.names(Kind.CLUSTER, "slowly") == ["slowly-1"]
    set_finalizers(team, Kind.CLUSTER, "slowly-1")
    wait_for_nothing(team, "slowly")
    assert head.submitted == ["slowly-1-0"]


def test_a_job_of_the_same_name_starts_when_the_pods_of_the_deleted_one_are_gone(
    team: Team,
) -> None:
    head = team.train("again")
    pod = add_lasting_pod(team, "again")
    uid = team.job("again")["metadata"]["uid"]
    delete(team, "again")
    wait_until(lambda: is_gone(team, "again"), SECONDS, "no job")
    team.submit(small("again"))
    team.wait_for_reason("WaitingForOldPods", "again")
    wait_until(lambda: team.names(Kind.CLUSTER, "again") == [], SECONDS, "no cluster")
    assert team.condition("again", ConditionType.ACCEPTED) == ("True", "Accepted")
    assert team.condition("again", ConditionType.STALLED) is None
    assert team.names(Kind.CLUSTER, "again") == [] and head.submitted == ["again-1-0"]
    head.restart()  # its pod has ended
    set_finalizers(team, Kind.POD, pod)
    team.wait_for_driver("again-1-0")
    head.advance(1)
    team.wait_for("Running", "again")
    (cluster,) = team.objects(Kind.CLUSTER, "again")
    assert cluster["metadata"]["ownerReferences"][0]["uid"] != uid
    assert team.status("again").restarts.total == 0 and head.submitted == ["again-1-0"] * 2
    delete(team, "again")


def test_the_cluster_of_an_orphaning_deletion_stays_until_somebody_deletes_it(team: Team) -> None:
    head = team.train("orphaned")
    delete(team, "orphaned", "--cascade=orphan")
    wait_until(lambda: is_gone(team, "orphaned"), SECONDS, "no job")
    team.submit(small("orphaned"))
    team.wait_for_condition("orphaned", ConditionType.STALLED, "True", "NameTaken")
    (cluster,) = team.objects(Kind.CLUSTER, "orphaned")
    assert "ownerReferences" not in cluster["metadata"]
    assert "deletionTimestamp" not in cluster["metadata"]
    head.restart()
    team.delete("raycluster", "orphaned-1")
    team.wait_for_driver("orphaned-1-0")
    delete(team, "orphaned")


def test_what_was_made_for_a_job_that_was_gone_already_is_deleted(team: Team) -> None:
    owner = Owner(team.namespace, "ghost", str(uuid.uuid4()))
    container = {"name": "ray", "image": "ghost:1"}
    head = {"rayStartParams": {}, "template": {"spec": {"containers": [container]}}}
    spec = {"suspend": True, "headGroupSpec": head}
    metadata = owner.metadata("ghost-1")
    assert metadata["ownerReferences"][0]["apiVersion"] == API_VERSION
    assert metadata["ownerReferences"][0]["kind"] == KIND
    team.kube.create({**Kind.CLUSTER.header, "metadata": metadata, "spec": spec})
    wait_until(lambda: team.left("ghost") == [], SECONDS, "no cluster")


def test_a_namespace_is_gone_with_its_jobs_and_the_operator_serves_the_others(
    defined: Kubectl, tmp_path: Path
) -> None:
    """Without an operator: test_lost_namespaces_on_an_api_server.py."""
    doomed, other = (f"{word}-{uuid.uuid4().hex[:8]}" for word in ("doomed", "other"))
    for namespace in (doomed, other):
        defined("create", "namespace", namespace)
        for made in shared_claim(namespace):
            defined.apply(namespace, made)
    with a_team(defined, tmp_path, namespaces=[doomed, other]) as team:
        there, elsewhere = (replace(team, namespace=namespace) for namespace in (doomed, other))
        there.train("trains")
        head = elsewhere.train("stays")
        there.submit(small("waits", suspend=True))
        there.wait_for("Suspended", "waits")
        delete_namespace(defined, doomed)
        head.advance(2)
        wait_until(lambda: step(elsewhere, "stays") == 2, SECONDS, "step 2")
        wait_until(
            lambda: 'job="trains"' not in team.operator.get("/metrics")[1], SECONDS, "no series"
        )
        log = team.operator.log.read_text()
        assert " ERROR " not in log and "Traceback" not in log, log
    defined("delete", "namespace", other, "--wait=false")
    defined("delete", "persistentvolume", f"shared-{doomed}", f"shared-{other}", "--wait=false")
