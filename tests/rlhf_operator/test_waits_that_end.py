"""Nothing is waited for without end: each wait has a bound, and an end that is told."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, claim, manifest

pytestmark = pytest.mark.slow


def lose_node_of(world: World, role: str, cluster: str = "sort-1") -> str:
    """The kubelet of a pod is gone, and the pod is told to end; its name."""
    pod = next(name for name in world.pods(cluster) if f"-{role}-" in name)
    held = {"finalizers": ["test/kubelet"]}
    world.kube.edit(Kind.POD, NAMESPACE, pod, lambda each: each["metadata"].update(held))
    if role == "head":
        world.head(cluster).is_down = True
    world.kube.remove(Kind.POD, NAMESPACE, pod)
    return pod


@pytest.mark.parametrize("role", ["head", "worker"])
def test_a_lost_node_costs_the_cluster_and_not_the_job(world: World, role: str) -> None:
    world.run_to_training()
    pod = lose_node_of(world, role)
    if role == "worker":
        world.head().end(4)  # the driver has waited for another node in vain
    world.wait(60)
    assert world.clusters() == ["sort-1"], "it may end yet"
    world.run_kuberay()
    assert len(world.pods()) == 3, "KubeRay makes none beside it"
    world.wait(world.settings.lost_pod_seconds)
    assert world.clusters() == ["sort-2"] and world.pods() == [pod]
    assert any(pod in each for each in world.told("NodeLost")), world.told("NodeLost")
    world.run_kuberay()
    world.wait(30)
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.clusters == 1


def test_a_pod_on_a_lost_node_does_not_hold_up_a_job_that_is_resumed(world: World) -> None:
    world.run_to_training()
    world.edit_job(suspend=True)
    lose_node_of(world, "worker")
    world.wait(60)
    world.edit_job(suspend=False)
    world.wait(30)
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForOldPods")
    world.wait(world.settings.lost_pod_seconds)
    assert world.clusters() == ["sort-2"]


def stranger(cluster: str, **metadata: Any) -> dict[str, Any]:
    """A pod that bears the labels of a job and its cluster, and is nobody's."""
    labels = {
        "ray.io/cluster": cluster,
        "ray.io/node-type": "head",
        "rlhf-operator.dev/job": "sort",
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "stranger", "namespace": NAMESPACE, "labels": labels, **metadata},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


@pytest.mark.parametrize("kind", [None, "Job"])
def test_a_strangers_pod_with_the_jobs_labels_changes_nothing(
    world: World, kind: str | None
) -> None:
    # An owner that exists: else the garbage collector would delete the pod. There are no Jobs here.
    world.kube.create(claim("of-the-stranger"))
    existing = world.kube.get(Kind.CLAIM, NAMESPACE, "of-the-stranger")
    assert existing is not None
    owner = {"kind": kind, "name": "sort-1", "uid": existing["metadata"]["uid"], "controller": True}
    world.kube.create(stranger("sort-1", ownerReferences=[owner] if kind else []))
    world.run_to_training()
    assert world.head().submitted == ["sort-1-0"]
    world.edit_job(suspend=True)
    world.wait(30)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested")
    world.edit_job(suspend=False)
    world.wait(5)
    assert world.clusters() == ["sort-2"]
    assert (Kind.POD, NAMESPACE, "stranger") in world.kube.objects


def ready(world: World, is_ready: bool) -> None:
    pod = next(name for name in world.pods() if "-head-" in name)
    world.set_pod(pod, conditions=[{"type": "Ready", "status": str(is_ready)}])


def test_a_head_that_neither_operator_nor_kubelet_reach_is_given_up(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    ready(world, False)
    world.wait(world.settings.dead_head_seconds - 30)
    assert world.clusters() == ["sort-1"]
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    assert any("has not answered for" in each for each in world.told("HeadUnreachable"))


def test_a_head_that_only_the_operator_does_not_reach_trains_on(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    world.wait(5 * world.settings.dead_head_seconds)
    assert world.phase() == (JobPhase.RUNNING, "HeadUnreachable") and world.clusters() == ["sort-1"]


def test_it_is_given_up_where_the_operator_reaches_other_heads(world: World) -> None:
    world.submit(manifest("other"))
    world.run_to_training()
    world.head("other-1").advance(1)
    world.wait(30)
    world.head().go_down()
    world.wait(world.settings.dead_head_seconds + 60)
    assert sorted(world.clusters()) == ["other-1", "sort-2"]


def test_an_operator_that_was_away_gives_a_head_all_its_time(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    ready(world, False)
    world.wait(world.settings.dead_head_seconds - 30)
    world.seconds += 100_000
    world.start_operator()
    world.wait(world.settings.dead_head_seconds - 30)
    assert world.clusters() == ["sort-1"]


def heartbeat(world: World, promised: int | None) -> None:
    driver = world.head().driver
    assert driver.report is not None
    driver.report = driver.report.model_copy(update={"heartbeat_seconds": promised})


def test_a_driver_whose_heart_has_stopped_is_started_again(world: World) -> None:
    world.run_to_training()
    heartbeat(world, 30)
    world.wait(world.settings.frozen_report_seconds - 30)
    assert world.head().submitted == ["sort-1-0"]
    world.wait(60)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert len(world.told("DriverFrozen")) == 1


def test_a_driver_that_promises_no_heartbeat_may_take_its_time(world: World) -> None:
    world.run_to_training()
    heartbeat(world, None)
    world.wait(3 * world.settings.frozen_report_seconds)
    assert world.head().submitted == ["sort-1-0"] and world.phase()[0] is JobPhase.RUNNING


def test_a_frozen_driver_that_does_not_end_costs_its_cluster(world: World) -> None:
    world.run_to_training()
    heartbeat(world, 30)
    world.head().driver.stubborn = True
    world.wait(world.settings.frozen_report_seconds + world.settings.stop_seconds + 60)
    assert world.clusters() == ["sort-2"] and "DriverStuck" in world.events()
    restarts = world.status().restarts
    assert (restarts.total, restarts.since_checkpoint) == (2, 1), "it failed once"


def test_devices_are_given_back_when_the_others_find_no_room(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay()
    world.set_pod(next(pod for pod in world.pods() if "-worker-" in pod), conditions=[])
    world.wait(world.settings.partial_cluster_seconds - 60)
    assert world.clusters() == ["sort-1"] and world.phase()[0] is JobPhase.PROVISIONING
    world.wait(120 + world.settings.partial_cluster_seconds / 2)
    assert world.clusters() == ["sort-2"], "at first at once"
    assert world.phase() == (JobPhase.RESTARTING, "NoRoom") or "NoRoom" in world.events()
    assert world.status().restarts.since_checkpoint == 0, "it is nobody's failure"


def test_two_jobs_that_hold_each_others_room_do_not_give_it_back_in_step(world: World) -> None:
    jobs = ("sort", "other")
    for name in jobs:
        world.submit(manifest(name))
    world.settle()
    world.run_kuberay()
    for name in jobs:
        worker = next(pod for pod in world.pods(f"{name}-1") if "-worker-" in pod)
        world.set_pod(worker, conditions=[])
    world.wait(world.settings.partial_cluster_seconds - 60)
    for _ in range(100):
        world.wait(30)
        if len(new := [each for each in world.clusters() if each.endswith("-2")]) > 0:
            break
    assert len(new) == 1, "the other one finds room now"


def test_who_holds_no_device_may_wait_for_room_as_long_as_it_takes(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    world.wait(10 * world.settings.partial_cluster_seconds)
    assert world.clusters() == ["sort-1"]


def test_a_report_that_is_lost_now_and_then_does_not_make_a_frozen_driver_live(
    world: World,
) -> None:
    world.run_to_training()
    heartbeat(world, 30)
    world.wait(30)
    report = world.head().driver.report
    for _ in range(4):
        world.wait(world.settings.frozen_report_seconds / 5)
        world.head().driver.report = None  # the process stands still, and its port with it
        world.wait(30)
        world.head().driver.report = report
    world.head().driver.report = None
    world.wait(world.settings.frozen_report_seconds / 5)
    assert "DriverFrozen" in world.events() and world.head().submitted[-1] == "sort-1-1"


def test_a_new_job_during_an_outage_does_not_make_the_operator_look_well(world: World) -> None:
    """All heads are out of reach, and well: one that was never reached is no proof."""
    world.run_to_training()
    world.head().go_down()
    world.wait(world.settings.dead_head_seconds)
    world.submit(manifest("new"))
    world.settle()
    world.head("new-1").go_down()
    world.run_kuberay()
    world.wait(2 * world.settings.dead_head_seconds)
    assert sorted(world.clusters()) == ["new-1", "sort-1"]
    assert world.phase() == (JobPhase.RUNNING, "HeadUnreachable")


def test_a_head_has_all_its_time_from_when_it_can_be_asked(world: World) -> None:
    """Pulling an image may take longer than a dead head is waited for."""
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    world.wait(2 * world.settings.dead_head_seconds)
    world.head().go_down()
    world.run_kuberay()
    world.wait(30)
    assert world.clusters() == ["sort-1"]
    world.head().come_back()
    world.wait(30)
    assert world.head().submitted == ["sort-1-0"]
