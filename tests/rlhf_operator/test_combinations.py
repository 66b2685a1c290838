"""What happens to a job while something else happens to it."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Forbidden, KubeError
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, claim, manifest

KEY = (NAMESPACE, "sort")
BACKING_OFF = manifest(failurePolicy={"maxRestarts": 9, "backoffSeconds": 200})


def lose_clusters(world: World) -> None:
    """The second cluster that is lost is not replaced at once."""
    world.run_to_training(BACKING_OFF)
    for name in ("sort-1", "sort-2"):
        world.run_kuberay()
        world.settle()
        world.kube.remove(Kind.CLUSTER, NAMESPACE, name)
        world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "ClusterLost") and world.clusters() == []


def test_an_operator_that_starts_while_a_job_backs_off_keeps_its_reason(world: World) -> None:
    lose_clusters(world)
    answer, world.planner.answer = world.planner.answer, None
    world.start_operator()
    world.wait(60)
    assert world.phase() == (JobPhase.RESTARTING, "ClusterLost")
    world.planner.answer = answer
    world.wait(200)
    assert world.clusters() == ["sort-3"]


def test_a_claim_that_is_missing_and_made_while_a_job_backs_off_is_no_obstacle(
    world: World,
) -> None:
    lose_clusters(world)
    world.kube.remove(Kind.CLAIM, NAMESPACE, "shared")
    world.reconcile(KEY)
    assert world.phase() == (JobPhase.PENDING, "ClaimNotFound")
    world.kube.create(claim())
    world.wait(60)
    assert world.phase() == (JobPhase.RESTARTING, "BackingOff")
    assert world.condition(ConditionType.STALLED) is None
    assert world.status().message == "the next start is due at 00:03:25 UTC"
    world.wait(200)
    assert world.clusters() == ["sort-3"]


def test_a_job_that_is_admitted_again_while_it_backs_off_is_not_suspended(world: World) -> None:
    world.run_to_training(BACKING_OFF)
    for _ in range(2):
        world.head().end(4)
        world.wait(10)
    assert world.phase() == (JobPhase.RESTARTING, "DriverFailed")
    world.suspend_cluster(True)
    world.run_kuberay()
    world.settle()
    assert world.phase() == (JobPhase.SUSPENDED, "Evicted")
    world.suspend_cluster(False)
    world.run_kuberay()
    world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "BackingOff")
    assert world.condition(ConditionType.SUSPENDED) is None
    world.wait(200)
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]


def test_a_suspension_that_is_taken_back_while_no_operator_runs_costs_no_restart(
    world: World,
) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 0}))
    world.edit_job(suspend=True)
    while world.clusters():
        world.seconds += 1
        world.reconcile(KEY)  # the last one, as the operator dies then
    world.edit_job(suspend=False)
    world.start_operator()
    world.settle()
    assert world.clusters() == ["sort-2"], world.phase()
    assert world.status().restarts.total == 0 and "ClusterLost" not in world.events()


def test_a_wrong_image_is_mended_by_an_edit(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    waiting = {"reason": "InvalidImageName", "message": "no such name"}
    for pod in world.pods():
        world.set_pod(pod, containerStatuses=[{"name": "ray", "state": {"waiting": waiting}}])
    world.settle()
    assert world.phase() == (JobPhase.PROVISIONING, "ImagePull")
    assert world.condition(ConditionType.STALLED) == ("True", "ImagePull")
    world.edit_job(suspend=True)
    world.edit_job(image={"runtime": "runtime:2"}, suspend=False)
    world.settle()
    (message,) = world.told("ManifestChanged")
    assert message == "the manifest has changed: a new cluster starts", "there was no driver"
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForPods")
    assert world.condition(ConditionType.STALLED) is None
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.total == 0


@pytest.mark.parametrize("phase", list(JobPhase))
def test_a_manifest_that_is_applied_every_three_seconds_changes_nothing(
    world: World, phase: JobPhase
) -> None:
    """By a tool that also writes the time into an annotation."""
    begin(world, phase)
    writes, requests, before = len(world.kube.writes), world.kube.reads, world.status()
    for number in range(20):
        annotate(world, {"applied": str(number)})
        world.wait(3)
    written = [kind for _, kind in world.kube.writes[writes:]]
    assert set(written) <= {Kind.JOB} and len(written) <= 4, "a running job's progress"
    assert world.kube.reads - requests <= 3 * 20
    after = world.status()
    assert (after.phase, after.reason, after.attempts) == (phase, before.reason, before.attempts)


def annotate(world: World, annotations: dict[str, str]) -> None:
    world.kube.edit(Kind.JOB, *KEY, lambda job: job["metadata"].update(annotations=annotations))


def begin(world: World, phase: JobPhase) -> None:
    """Bring a job to a phase in which it stays for more than a minute."""
    match phase:
        case JobPhase.PENDING:
            world.submit(manifest(), with_claim=False)
        case JobPhase.PLANNING:
            world.planner.answer = None
            world.submit(manifest())
        case JobPhase.PROVISIONING:
            world.submit(manifest())
        case JobPhase.RUNNING | JobPhase.SUCCEEDED | JobPhase.SUSPENDED | JobPhase.FAILED:
            world.run_to_training()
        case JobPhase.RESTARTING:
            lose_clusters(world)
    if phase is JobPhase.SUCCEEDED:
        world.head().finish()
    elif phase is JobPhase.FAILED:
        world.head().end(1)
    elif phase is JobPhase.SUSPENDED:
        world.edit_job(suspend=True)
    world.wait(30)
    assert world.phase()[0] is phase


def scale_by_hand(world: World) -> None:
    def change(cluster: dict[str, Any]) -> None:
        cluster["spec"]["workerGroupSpecs"][0]["replicas"] = 1

    world.kube.edit(Kind.CLUSTER, NAMESPACE, "sort-1", change)


def test_a_deletion_that_is_refused_stalls_the_job_until_it_is_allowed(world: World) -> None:
    world.run_to_training()
    world.wait(20)
    refused: list[KubeError] = []

    def trouble(verb: str, kind: Kind) -> KubeError | None:
        if (verb, kind) != ("delete", Kind.CLUSTER) or len(refused) == 3:
            return None
        refused.append(Forbidden("a webhook denies the request"))
        return refused[-1]

    world.kube.trouble = trouble
    scale_by_hand(world)
    world.reconcile(KEY)
    for _ in range(2):
        world.reconcile(KEY)
        assert world.condition(ConditionType.STALLED) == ("True", "KubernetesForbidden")
        assert world.condition(ConditionType.RECONCILING) is None
    assert len(world.told("KubernetesForbidden")) == 1
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    assert world.condition(ConditionType.STALLED) is None
    assert world.condition(ConditionType.RECONCILING) == ("True", "WaitingForPods")


def test_a_drained_head_is_one_event_until_the_next_one_runs(world: World) -> None:
    world.run_to_training()
    head = next(pod for pod in world.pods() if "-head-" in pod)
    drained = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
    world.set_pod(head, conditions=[drained, {"type": "Ready", "status": "True"}])
    world.tell_pod(head)
    world.settle()
    world.kill_pod("head")
    world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "Disrupted")
    assert len(world.told("Disrupted")) == 1
