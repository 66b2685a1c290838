"""What is started again, when, and how often."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Unreachable
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, manifest

NEVER_COUNTED: dict[str, Any] = {
    "maxRestarts": 0,
    "backoffSeconds": 10,
    "rules": [
        {"onReason": "ClusterLost", "action": "RestartIgnoringLimit"},
        {"onExitCodes": [4], "action": "RestartIgnoringLimit"},
    ],
}


def pause(world: World, reason: str) -> int:
    """Seconds from the reconcile that observes a failure to the next start of driver or cluster."""
    world.seconds += world.settings.poll_seconds
    world.reconcile((NAMESPACE, "sort"))
    assert world.phase() == (JobPhase.RESTARTING, reason)
    begin = world.seconds
    world.settle()
    while world.phase() == (JobPhase.RESTARTING, reason):
        assert world.seconds - begin < 1000
        world.wait(1)
    return round(world.seconds - begin)


def pauses(world: World, count: int) -> list[int]:
    """The same of drivers that fail one after the other."""
    found = []
    for _ in range(count):
        world.head().end(4)
        found.append(pause(world, "DriverFailed"))
    return found


def replace_workers(world: World, incarnations: int) -> None:
    """The last driver reports that it has replaced its workers so often, and is heard."""
    driver = world.head().driver
    driver.advance(3)
    assert driver.report is not None
    driver.report = driver.report.model_copy(update={"restarts": incarnations})
    world.wait(world.settings.progress_seconds)


def save(world: World, step: int) -> None:
    """The last driver reports a checkpoint, and is heard."""
    world.head().advance(step, checkpoint=step)
    world.wait(world.settings.poll_seconds)


def test_the_driver_is_started_again_on_the_same_cluster_at_once_and_then_after_a_wait(
    world: World,
) -> None:
    world.run_to_training()
    world.head().finish(ExitCode.RETRIABLE, "WorkerLost", "rank 1 died")
    world.wait(10)
    (told,) = world.told("WorkerLost")
    assert told == "rank 1 died; starting the driver again at once from the newest checkpoint"
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    restarts = world.status().restarts
    assert (restarts.drivers, restarts.total, restarts.since_checkpoint) == (1, 1, 1)
    world.head().finish(ExitCode.RETRIABLE, "WorkerLost", "rank 0 died")
    world.wait(10)
    assert world.phase() == (JobPhase.RESTARTING, "WorkerLost")
    assert world.status().message.startswith("rank 0 died")
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    world.wait(30)
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]
    assert world.clusters() == ["sort-1"]
    restarts = world.status().restarts
    assert (restarts.drivers, restarts.total, restarts.since_checkpoint) == (2, 2, 2)
    world.head().advance(2)
    world.wait(15)
    assert world.phase() == (JobPhase.RUNNING, "Running")


def test_a_driver_that_was_killed_is_started_again(world: World) -> None:
    world.run_to_training()
    world.head().end(-9)
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    (told,) = world.told("DriverKilled")
    assert "signal 9" in told
    world.head().end(-9)
    world.wait(10)
    assert world.phase() == (JobPhase.RESTARTING, "DriverKilled")
    driver = world.status().driver
    assert driver is not None and (driver.has_ended, driver.exit_code) == (True, 137)
    assert "signal 9" in world.status().message


def test_restarts_are_limited_and_a_new_checkpoint_forgives_them(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 2, "backoffSeconds": 1}))
    world.fail_driver()
    world.head().advance(2, checkpoint=2)
    world.wait(15)
    assert world.status().restarts.since_checkpoint == 0
    world.fail_driver()
    world.fail_driver()
    world.head().end(4)
    world.wait(10)
    assert world.phase()[0] is JobPhase.FAILED
    assert "maxRestarts allows 2" in world.status().message
    assert world.status().restarts.total == 3


def test_the_workers_own_restarts_count_too(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 2, "backoffSeconds": 1}))
    report = world.head().driver.report
    assert report is not None
    world.head().driver.report = report.model_copy(
        update={"sequence": report.sequence + 1, "restarts": 2, "steps_repeated": 7}
    )
    world.wait(15)
    restarts = world.status().restarts
    assert (restarts.incarnations, restarts.since_checkpoint, restarts.steps_repeated) == (2, 2, 7)
    world.head().end(4)
    world.wait(10)
    assert world.phase()[0] is JobPhase.FAILED


def test_the_first_restart_waits_for_nothing_and_later_waits_double(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 9, "backoffSeconds": 10}))
    assert pauses(world, 3) == [0, 10, 20]


def test_people_are_told_when_the_next_start_is_due(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 10}))
    for seconds in (0, 10):
        world.head().end(4)
        world.seconds += world.settings.poll_seconds
        world.reconcile((NAMESPACE, "sort"))
        due = world.status().restarts.next_time
        assert due is not None
        assert round((due - world.now()).total_seconds()) == seconds
        world.wait(seconds + 1)
        assert world.status().restarts.next_time is None


def test_restarts_that_no_limit_counts_wait_longer_and_longer(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER_COUNTED))
    assert pauses(world, 9) == [0, 10, 20, 40, 80, 160, 320, 600, 600]
    restarts = world.status().restarts
    assert (restarts.since_checkpoint, restarts.in_a_row, restarts.total) == (0, 9, 9)
    assert world.clusters() == ["sort-1"]


def test_clusters_that_vanish_uncounted_are_made_again_later_and_later(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER_COUNTED))
    found = []
    for _ in range(4):
        world.run_kuberay()
        world.settle()
        (cluster,) = world.clusters()
        world.kube.remove(Kind.CLUSTER, NAMESPACE, cluster)
        found.append(pause(world, "ClusterLost"))
    assert found == [0, 10, 20, 40]
    restarts = world.status().restarts
    assert (restarts.since_checkpoint, restarts.in_a_row, restarts.clusters) == (0, 4, 4)


@pytest.mark.parametrize("rules", [{}, NEVER_COUNTED])
def test_after_a_new_checkpoint_the_first_restart_waits_for_nothing_again(
    world: World, rules: dict[str, Any]
) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 10, **rules}))
    for step in (2, 4):
        assert pauses(world, 2) == [0, 10]
        save(world, step)
        restarts = world.status().restarts
        assert (restarts.since_checkpoint, restarts.in_a_row) == (0, 0)


def test_a_checkpoint_that_was_known_forgives_no_wait(world: World) -> None:
    world.run_to_training(manifest(failurePolicy=NEVER_COUNTED))
    save(world, 2)
    assert pauses(world, 2) == [0, 10]
    save(world, 2)
    assert pauses(world, 1) == [20]


@pytest.mark.parametrize(("incarnations", "seconds"), [(0, [0, 10]), (1, [10, 20]), (3, [40, 80])])
def test_the_workers_own_restarts_since_the_last_new_checkpoint_make_the_next_one_wait(
    world: World, incarnations: int, seconds: list[int]
) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 9, "backoffSeconds": 10}))
    replace_workers(world, 2)
    assert pauses(world, 1) == [20]
    save(world, 2)
    replace_workers(world, incarnations)
    restarts = world.status().restarts
    assert (restarts.in_a_row, restarts.total) == (incarnations, 3 + incarnations)
    assert pauses(world, 2) == seconds


def test_rules_go_first(world: World) -> None:
    rules = [
        {"onReason": "WorkerLost", "action": "Fail"},
        {"onExitCodes": [3], "action": "RestartIgnoringLimit"},
    ]
    policy = {"maxRestarts": 0, "backoffSeconds": 1, "rules": rules}
    world.run_to_training(manifest(failurePolicy=policy))
    world.head().finish(ExitCode.USER, "MissingData", "not yet there")
    world.wait(20)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.status().restarts.since_checkpoint == 0
    world.head().finish(ExitCode.RETRIABLE, "WorkerLost", "rank 1 died")
    world.wait(10)
    assert world.phase() == (JobPhase.FAILED, "WorkerLost")


def test_a_lost_head_is_waited_for_and_submitted_to_again(world: World) -> None:
    world.run_to_training()
    world.kill_pod("head")
    world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "WaitingForPods")
    assert world.events().count("HeadLost") == 1
    world.wait(60)
    assert world.phase()[0] is JobPhase.RESTARTING
    world.run_kuberay()
    world.settle()
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.clusters() == ["sort-1"]


def test_a_head_that_is_lost_again_is_submitted_to_after_a_wait(world: World) -> None:
    world.run_to_training()
    world.fail_driver()
    world.kill_pod("head")
    world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "HeadLost")
    world.run_kuberay()
    world.wait(20)
    assert world.phase() == (JobPhase.RESTARTING, "HeadLost")
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    world.wait(11)
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]
    assert world.clusters() == ["sort-1"]


def test_ray_started_again_in_the_same_pod_is_a_lost_head(world: World) -> None:
    world.run_to_training()
    world.head().restart()
    world.wait(10)
    assert world.events().count("HeadLost") == 1
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    world.head().advance(2)
    world.wait(15)
    world.head().restart()
    world.wait(10)
    assert world.phase() == (JobPhase.RESTARTING, "HeadLost")
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    world.wait(60)
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]


def test_a_lost_worker_is_the_drivers_own_affair(world: World) -> None:
    world.run_to_training()
    world.kill_pod("worker")
    world.wait(10)
    assert world.phase() == (JobPhase.RUNNING, "Running")
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Provisioning")
    world.run_kuberay()
    world.settle()
    assert world.condition(ConditionType.CLUSTER_READY) == ("True", "Ready")
    assert world.head().submitted == ["sort-1-0"]


def test_an_unreachable_head_is_asked_again(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    world.wait(120)
    assert world.phase() == (JobPhase.RUNNING, "HeadUnreachable")
    world.head().come_back()
    world.head().advance(9)
    world.wait(15)
    progress = world.status().progress
    assert progress is not None and progress.step == 9
    assert world.head().submitted == ["sort-1-0"]


def test_a_deleted_cluster_is_made_anew_under_another_name(world: World) -> None:
    world.run_to_training()
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.settle()
    assert world.events().count("ClusterLost") == 1
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.clusters == 1
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-2")
    world.wait(20)
    assert world.phase() == (JobPhase.RESTARTING, "ClusterLost") and world.clusters() == []
    world.wait(11)
    assert world.clusters() == ["sort-3"]
    assert world.status().restarts.clusters == 2


def test_a_cluster_that_vanished_before_its_first_driver_is_made_again(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.settle()
    assert world.clusters() == ["sort-1"] and world.status().restarts.total == 0


def test_a_cluster_that_fails_again_and_again_is_replaced_when_its_pods_are_gone(
    world: World,
) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 9, "backoffSeconds": 1}))
    world.fail_driver()
    world.fail_driver()
    world.head().end(4)
    world.wait(10)
    world.wait(30)
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.settle()
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]
    assert world.head("sort-2").submitted == ["sort-2-0"]


def test_a_dirty_cluster_gets_new_workers(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 1}))
    workers = [name for name in world.pods() if "-worker-" in name]
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    world.wait(5)
    assert not set(workers) & set(world.pods())
    world.run_kuberay()
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]


def test_dirty_workers_are_replaced_though_the_first_attempt_fails(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 1}))
    workers = [name for name in world.pods() if "-worker-" in name]
    world.kube.trouble = lambda verb, kind: Unreachable("503") if verb == "delete" else None
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    for _ in range(3):
        world.seconds += 10
        world.reconcile((NAMESPACE, "sort"))
    assert set(workers) < set(world.pods()) and world.head().submitted == ["sort-1-0"]
    world.kube.trouble = lambda verb, kind: None
    world.settle()
    assert not set(workers) & set(world.pods())
    world.run_kuberay()
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.status().restarts.total == 1


def test_workers_that_are_made_later_are_not_dirty(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 100}))
    world.fail_driver()
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    world.wait(5)
    world.run_kuberay()
    fresh = world.pods()
    world.wait(80)
    assert world.pods() == fresh and world.head().submitted == ["sort-1-0", "sort-1-1"]
    world.wait(120)
    assert world.pods() == fresh
    assert world.head().submitted == ["sort-1-0", "sort-1-1", "sort-1-2"]


def test_a_refusal_that_is_taken_back_costs_nothing(world: World) -> None:
    world.run_to_training()
    token, head = world.head().token, world.head()
    for _ in range(5):
        head.token = "another"
        world.wait(world.settings.refused_seconds - 10)
        head.token = token
        world.wait(10)
    assert world.clusters() == ["sort-1"] and head.submitted == ["sort-1-0"]
    assert world.status().restarts.total == 0


def test_a_pod_that_only_bears_the_clusters_labels_is_not_deleted(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"backoffSeconds": 1}))
    labels = {"ray.io/cluster": "sort-1", "ray.io/node-type": "worker", **world.labels()}
    metadata = {"name": "foreign", "namespace": NAMESPACE, "labels": labels}
    world.kube.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "status": {}})
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    world.wait(5)
    assert "foreign" in world.pods() and len(world.pods()) == 2  # the other one is the head


def test_a_head_that_does_not_take_the_token_is_replaced(world: World) -> None:
    world.run_to_training()
    world.head().token = "another"
    world.wait(world.settings.refused_seconds / 2)
    assert world.clusters() == ["sort-1"], "one refusal may be a mistake"
    world.wait(world.settings.refused_seconds)
    assert world.events().count("HeadRefused") == 1
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.settle()
    world.head("sort-2").token = "another"
    world.wait(world.settings.refused_seconds + 10)
    assert world.phase() == (JobPhase.RESTARTING, "HeadRefused") and world.clusters() == []
    world.wait(60)
    assert world.clusters() == ["sort-3"]


def test_memory_of_a_pod_that_is_gone_already_is_told(world: World) -> None:
    world.run_to_training()
    pod = next(name for name in world.pods() if "-worker-" in name)
    world.set_pod(
        pod,
        conditions=[],
        containerStatuses=[
            {
                "name": "ray-worker",
                "image": "runtime:1",
                "state": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
            }
        ],
    )
    world.tell_pod(pod)
    world.kill_pod("worker")
    world.settle()
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "OutOfMemory")
    assert "OutOfMemory" in world.events()


def test_what_is_left_of_an_earlier_attempt_is_deleted(world: World) -> None:
    """Nobody had told of it when the next one was made."""
    world.run_to_training()
    first = copy.deepcopy(world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"])
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.wait(10)
    world.run_kuberay()
    world.wait(30)
    assert world.head("sort-2").submitted == ["sort-2-0"]
    metadata = {name: first["metadata"][name] for name in ("name", "namespace", "labels")}
    owners = first["metadata"]["ownerReferences"]
    world.kube.create({**first, "metadata": {**metadata, "ownerReferences": owners}})
    world.settle()
    assert world.clusters() == ["sort-2"] and world.phase()[0] is JobPhase.RUNNING
