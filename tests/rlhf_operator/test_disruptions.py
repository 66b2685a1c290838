"""Pods that Kubernetes ends for its own reasons cost a job none of its restarts."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, manifest

READY = {"type": "Ready", "status": "True"}
DRAINED = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "EvictionByEvictionAPI",
    "message": "Eviction API: evicting",
}
NEVER: dict[str, Any] = {"maxRestarts": 0, "backoffSeconds": 1}
KILLED: dict[str, Any] = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
DRAIN: dict[str, Any] = {"conditions": [READY, DRAINED]}
EVICTION: dict[str, Any] = {"phase": "Failed", "reason": "Evicted", "conditions": []}


def counts(world: World) -> tuple[int, int, int]:
    """Return all restarts, those that count, and disruptions since the last checkpoint."""
    restarts = world.status().restarts
    return restarts.total, restarts.since_checkpoint, restarts.disruptions_since_checkpoint


def lose_pod(world: World, role: str, **status: Any) -> None:
    """A pod gets this status, then it is gone, and KubeRay makes another one."""
    pod = next(name for name in world.pods() if f"-{role}-" in name)
    world.set_pod(pod, **status)
    if status:
        world.tell_pod(pod)
    world.settle()
    world.kill_pod(role)
    world.settle()
    world.run_kuberay()


def replace_workers(world: World, restarts: int, disruptions: int) -> None:
    """The driver reports that it has replaced its workers, so often because of lost nodes."""
    driver = world.head().driver
    driver.advance(3)
    assert driver.report is not None
    numbers = {"restarts": restarts, "disruptions": disruptions}
    driver.report = driver.report.model_copy(update=numbers)
    world.wait(world.settings.progress_seconds)


@pytest.mark.parametrize("status", [DRAIN, EVICTION], ids=["drained", "evicted"])
def test_a_disrupted_head_does_not_count(world: World, status: dict[str, Any]) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    lose_pod(world, "head", **status)
    world.wait(10)
    assert world.head().submitted[-1] == "sort-1-1" and counts(world) == (1, 0, 1)
    assert world.status().restarts.disruptions == 1
    world.head().advance(4, checkpoint=4)
    world.wait(30)
    assert counts(world) == (1, 0, 0) and world.status().restarts.disruptions == 1


def test_a_head_that_somebody_deletes_counts(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    lose_pod(world, "head")
    assert world.phase() == (JobPhase.FAILED, "HeadLost")


def test_a_head_that_runs_out_of_memory_counts(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    lose_pod(world, "head", containerStatuses=[{"name": "ray-head", "state": KILLED}])
    assert world.phase() == (JobPhase.FAILED, "HeadLost")


def test_workers_that_a_driver_replaces_after_lost_nodes_do_not_count(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    replace_workers(world, restarts=3, disruptions=2)
    assert counts(world) == (3, 1, 2)
    replace_workers(world, restarts=4, disruptions=3)
    assert counts(world) == (4, 1, 3) and world.status().restarts.incarnations == 4


def test_a_worker_that_runs_out_of_memory_is_no_lost_node(world: World) -> None:
    """The driver cannot tell: in both cases the pod leaves the Ray cluster."""
    world.run_to_training()
    lose_pod(world, "worker", containerStatuses=[{"name": "ray-worker", "state": KILLED}])
    replace_workers(world, restarts=1, disruptions=1)
    assert counts(world) == (1, 1, 0)
    world.wait(600)
    replace_workers(world, restarts=2, disruptions=2)
    assert counts(world) == (2, 1, 1), "what was forgotten explains nothing"


@pytest.mark.parametrize("reason", ["NodeLost", "NodesMissing"])
def test_a_driver_that_ends_for_want_of_nodes_does_not_count(world: World, reason: str) -> None:
    world.run_to_training(manifest(failurePolicy={**NEVER, "maxDisruptions": 1}))
    world.head().finish(ExitCode.RETRIABLE, reason, "1 of 2 nodes are there")
    world.wait(10)
    assert world.head().submitted[-1] == "sort-1-1" and counts(world) == (1, 0, 1)
    world.head().finish(ExitCode.RETRIABLE, reason, "1 of 2 nodes are there")
    world.wait(10)
    assert world.phase() == (JobPhase.FAILED, reason)
    assert "after 1 disruptions without a new checkpoint" in world.status().message


def test_a_pod_that_never_ends_is_on_a_lost_node_and_does_not_count(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    pod = next(name for name in world.pods() if "-head-" in name)
    kept = {"finalizers": ["test/kubelet"]}
    world.set_pod(pod, conditions=[DRAINED])
    world.kube.edit(Kind.POD, NAMESPACE, pod, lambda made: made["metadata"].update(kept))
    world.kube.remove(Kind.POD, NAMESPACE, pod)
    world.wait(world.settings.lost_pod_seconds + 60)
    assert world.clusters() == ["sort-2"] and counts(world) == (2, 0, 2)


def test_a_suspension_begins_the_count_anew(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER))
    replace_workers(world, restarts=2, disruptions=2)
    world.edit_job(suspend=True)
    world.wait(30)
    assert world.phase()[0] is JobPhase.SUSPENDED
    assert counts(world) == (2, 0, 0) and world.status().restarts.disruptions == 2


def budgets(world: World) -> list[Any]:
    return [made for (kind, _, _), made in world.kube.objects.items() if kind is Kind.BUDGET]


def guarded() -> dict[str, Any]:
    job = manifest()
    job["spec"]["resources"]["evictable"] = False
    return job


def test_a_job_that_is_not_to_be_evicted_has_a_budget_of_all_its_pods(world: World) -> None:
    world.run_to_training(guarded())
    (budget,) = budgets(world)
    assert budget["spec"]["minAvailable"] == len(world.pods()) == 3
    selected = budget["spec"]["selector"]["matchLabels"].items()
    assert all(selected <= world.labels_of(pod).items() for pod in world.pods())
    (owner,) = budget["metadata"]["ownerReferences"]
    cluster = world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"]
    assert (owner["kind"], owner["uid"]) == ("RayCluster", cluster["metadata"]["uid"])
    world.kube.remove(Kind.BUDGET, NAMESPACE, "sort-1")
    world.wait(1000)
    assert budgets(world), "it is made again as all other objects are"


def test_other_jobs_have_no_budget(world: World) -> None:
    world.run_to_training()
    world.wait(1000)
    assert budgets(world) == []


def test_a_cluster_that_somebody_else_makes_at_that_moment_gets_no_budget(world: World) -> None:
    place = {"name": "sort-1", "namespace": NAMESPACE}
    cluster = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "metadata": place}
    made: list[bool] = []

    def make_another(verb: str, kind: Kind) -> None:
        if (verb, kind) == ("create", Kind.CLUSTER) and not made:
            made.append(True)
            world.kube.create({**cluster, "spec": {"workerGroupSpecs": []}})

    world.kube.trouble = make_another
    world.submit(guarded())
    world.reconcile((NAMESPACE, "sort"))
    assert made and world.status().cluster is not None and budgets(world) == []
