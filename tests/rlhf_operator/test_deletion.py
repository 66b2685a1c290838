"""Deletion of a job: Kubernetes deletes its objects, and the operator creates nothing for it.

A new job of its name waits until nothing of the deleted one is left.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.kinds import Kind
from rlhf_operator.process.job_metrics import SHOWN_SECONDS
from rlhf_operator.process.metric_names import JOB_PHASE, JOB_STEP

from .troubled_world import FOREGROUND, KEY, TroubledWorld
from .world import NAMESPACE, World, manifest

WAITS = (JobPhase.PROVISIONING, "WaitingForOldPods")


def series(world: World, name: str) -> float | None:
    """The value of a job's metric."""
    return world.metrics.registry.get_sample_value(name, {"namespace": NAMESPACE, "job": "sort"})


def test_kubernetes_deletes_everything_without_the_operator(world: World) -> None:
    world.run_to_training()
    before = len(world.kube.writes)
    world.delete_job()
    world.wait(600)
    kept = (Kind.CLAIM, Kind.CORE_EVENT)
    assert [kind for kind, _, _ in world.kube.objects if kind not in kept] == []
    assert world.kube.writes[before:] == []
    assert series(world, JOB_STEP.name) is None


def lose_cluster(world: World) -> None:
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")


def lose_head(world: World) -> None:
    world.kill_pod("head")
    world.run_kuberay()


def lose_driver(world: World) -> None:
    world.head().end(ExitCode.RETRIABLE)


def lose_token(world: World) -> None:
    for kind, namespace, name in list(world.kube.objects):
        if kind is Kind.SECRET:
            world.kube.remove(kind, namespace, name)
    world.kill_pod("worker")


def resume(world: World) -> None:
    world.edit_job(suspend=True)
    world.edit_job(suspend=False)


@pytest.mark.parametrize("happens", [lose_cluster, lose_head, lose_driver, lose_token, resume])
@pytest.mark.parametrize("is_training", [True, False], ids=["training", "new"])
def test_nothing_is_made_for_a_job_whose_deletion_somebody_holds_up(
    world: World, happens: Callable[[World], None], is_training: bool
) -> None:
    if is_training:
        world.run_to_training()
    else:
        world.submit(manifest())
        world.settle()
        world.run_kuberay(ready=False)
    world.kube.edit(Kind.JOB, *KEY, lambda job: job["metadata"].update(finalizers=[FOREGROUND]))
    world.delete_job()
    world.settle()
    submitted, before = list(world.head().submitted), len(world.kube.writes)
    if is_training or happens is not lose_driver:
        happens(world)
    world.run_kuberay()
    world.wait(3600)
    by_kuberay, by_operator = ("create", Kind.POD), ("apply_status", Kind.JOB)
    assert set(world.kube.writes[before:]) <= {by_kuberay, by_operator}
    assert world.head().submitted == submitted and world.status().restarts.total == 0


def test_a_job_of_the_same_name_waits_for_the_end_of_the_deleted_one(
    troubled: TroubledWorld,
) -> None:
    troubled.run_job_to_training()
    troubled.kube.collects_at_once = False
    troubled.delete_job()
    troubled.submit(manifest())
    troubled.wait(30)
    assert troubled.phase() == WAITS and "deleted job of this name" in troubled.status().message
    assert troubled.condition(ConditionType.ACCEPTED) == ("True", "Accepted")
    assert troubled.condition(ConditionType.STALLED) is None
    assert [driver.id for driver in troubled.living()] == ["sort-1-0"], "the deleted job's driver"
    troubled.kube.collect_garbage()
    troubled.wait(30)
    assert troubled.clusters() == [] and troubled.phase() == WAITS, "its pods are ending"
    troubled.run_kubelets()
    troubled.run_job_to_training()
    assert troubled.status().restarts.total == 0 and troubled.clusters() == ["sort-1"]
    assert troubled.events().count("WaitingForOldPods") == 1


def test_a_cluster_of_the_deleted_job_is_waited_for_although_it_has_no_pods(world: World) -> None:
    world.queue_holds = True
    world.submit(manifest())
    world.settle()
    world.kube.collects_at_once = False
    world.delete_job()
    world.submit(manifest())
    world.wait(30)
    assert world.phase() == WAITS
    world.kube.collect_garbage()
    world.settle()
    assert world.clusters() == ["sort-1"] and world.phase()[1] == "Queued"


def test_the_end_of_a_cluster_that_no_watch_reports_is_noticed(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.kube.edit(Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each["metadata"].pop("labels"))
    world.start_operator()  # it lists clusters by their label
    world.kube.collects_at_once = False
    world.delete_job()
    world.submit(manifest())
    world.settle()
    assert world.phase() == WAITS
    world.kube.collect_garbage()
    world.wait(world.settings.wait_seconds)
    assert world.clusters() == ["sort-1"]


def test_pods_of_any_attempt_of_the_deleted_job_are_waited_for(troubled: TroubledWorld) -> None:
    troubled.run_job_to_training()
    troubled.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    troubled.run_kubelets()
    troubled.wait(60)
    troubled.run_kuberay()
    assert troubled.clusters() == ["sort-2"] and len(troubled.pods("sort-2")) == 3
    troubled.delete_job()
    troubled.submit(manifest())
    troubled.wait(30)
    assert troubled.phase() == WAITS
    troubled.run_kubelets()
    troubled.settle()
    assert troubled.clusters() == ["sort-1"]


def test_pods_of_the_deleted_job_on_a_lost_node_are_not_waited_for(
    troubled: TroubledWorld,
) -> None:
    troubled.run_job_to_training()
    troubled.delete_job()
    troubled.submit(manifest())
    troubled.wait(troubled.settings.lost_pod_seconds - 1)
    assert troubled.clusters() == []
    troubled.wait(1)
    assert troubled.clusters() == ["sort-1"] and troubled.events().count("NodeLost") == 1


def test_a_job_that_cannot_run_says_so_before_the_deleted_one_has_ended(
    troubled: TroubledWorld,
) -> None:
    troubled.run_job_to_training()
    troubled.delete_job()
    troubled.submit(manifest(image=None))
    troubled.settle()
    assert troubled.phase() == (JobPhase.PENDING, "NoImage")


def test_a_cluster_of_another_owner_with_such_a_name_is_not_waited_for(world: World) -> None:
    owner = {"kind": "RayService", "name": "sort", "uid": "uid-of-theirs", "controller": True}
    metadata = {"name": "sort-7", "labels": world.labels(), "ownerReferences": [owner]}
    world.kube.create(
        {
            **Kind.CLUSTER.header,
            "metadata": {**metadata, "namespace": NAMESPACE},
            "spec": {"workerGroupSpecs": []},
        }
    )
    world.run_kuberay()
    world.submit(manifest())
    world.settle()
    assert world.clusters() == ["sort-7", "sort-1"]


def test_a_cluster_that_comes_late_for_the_deleted_job_costs_no_restart(world: World) -> None:
    """Its creation was under way when the job was deleted; it takes the new cluster's name."""
    world.submit(manifest())
    world.settle()
    late = copy.deepcopy(world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"])
    world.delete_job()
    world.kube.collects_at_once = False
    arrivals = [late]

    def arrive(verb: str, kind: Kind) -> None:
        if (verb, kind) == ("create", Kind.CLUSTER) and arrivals:
            world.kube.create(arrivals.pop())

    world.kube.trouble = arrive
    world.submit(manifest())
    world.wait(100)
    assert not arrivals and world.status().cluster is not None
    assert world.phase() == (JobPhase.PROVISIONING, "Provisioning")
    world.kube.collect_garbage()
    world.wait(30)
    world.run_kuberay()
    world.settle()
    assert world.phase() == (JobPhase.RUNNING, "Running")
    assert world.clusters() == ["sort-1"] and world.status().restarts.total == 0


def test_what_was_known_of_the_deleted_job_is_not_said_of_the_next(world: World) -> None:
    world.run_to_training()
    world.head().advance(7)
    world.wait(20)
    assert series(world, JOB_STEP.name) == 7
    ended: dict[str, Any] = {"terminated": {"exitCode": 143}}
    for pod in world.pods():
        world.set_pod(pod, conditions=[], containerStatuses=[{"name": "ray", "state": ended}])
        world.tell_pod(pod)
    world.delete_job()
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    world.settle()
    assert world.clusters() == ["sort-1"] and "ContainerFailed" not in world.events()
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Provisioning")
    assert series(world, JOB_STEP.name) is None


def test_the_end_of_the_deleted_job_does_not_end_the_series_of_the_next(world: World) -> None:
    world.run_to_training()
    world.head().finish()
    world.wait(10)
    assert world.phase()[0] is JobPhase.SUCCEEDED
    world.watches_are_late = True  # both are told before a reconcile
    world.delete_job()
    world.submit(manifest(suspend=True))
    world.watches_are_late = False
    world.tell()
    world.wait(SHOWN_SECONDS + 60)
    world.metrics.jobs.forget_ended()
    labels = {"namespace": NAMESPACE, "job": "sort", "phase": "Suspended"}
    assert world.metrics.registry.get_sample_value(JOB_PHASE.name, labels) == 1
