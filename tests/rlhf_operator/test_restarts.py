"""What is started again, when, and how often."""

from __future__ import annotations

from rlhf_api.exits import ExitCode
from rlhf_api.status import ConditionType, Phase
from rlhf_operator.kube.protocol import Kind, Unreachable

from .world import NAMESPACE, World, manifest


def test_the_driver_is_started_again_on_the_same_cluster_after_a_wait(world: World) -> None:
    world.run_to_training()
    world.head().finish(ExitCode.RETRIABLE, "WorkerLost", "rank 1 died")
    world.wait(10)
    assert world.phase() == (Phase.RESTARTING, "WorkerLost")
    assert world.head().submitted == ["sort-1-0"]
    world.wait(30)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.clusters() == ["sort-1"]
    restarts = world.status().restarts
    assert (restarts.drivers, restarts.total, restarts.since_checkpoint) == (1, 1, 1)
    world.head().advance(2)
    world.wait(15)
    assert world.phase() == (Phase.RUNNING, "Running")


def test_a_driver_that_was_killed_is_started_again(world: World) -> None:
    world.run_to_training()
    world.head().end(-9)
    world.wait(10)
    assert world.phase() == (Phase.RESTARTING, "DriverKilled")
    assert world.status().driver is not None
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
    assert world.phase()[0] is Phase.FAILED
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
    assert world.phase()[0] is Phase.FAILED


def test_waits_double(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 9, "backoffSeconds": 10}))
    waits = []
    for _ in range(2):
        world.head().end(4)
        world.wait(world.settings.poll_seconds)
        due = world.status().restarts.next_time
        assert due is not None
        waits.append(round((due - world.now()).total_seconds() / 10))
        world.wait(60)
    assert waits == [1, 2]


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
    assert world.phase() == (Phase.FAILED, "WorkerLost")


def test_a_lost_head_is_waited_for_and_submitted_to_again(world: World) -> None:
    world.run_to_training()
    world.kill_pod("head")
    world.settle()
    assert world.phase() == (Phase.RESTARTING, "HeadLost")
    world.wait(60)
    assert world.phase()[0] is Phase.RESTARTING
    world.run_kuberay()
    world.settle()
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.clusters() == ["sort-1"]


def test_ray_started_again_in_the_same_pod_is_a_lost_head(world: World) -> None:
    world.run_to_training()
    world.head().restart()
    world.wait(10)
    assert world.phase() == (Phase.RESTARTING, "HeadLost")
    world.wait(60)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]


def test_a_lost_worker_is_the_drivers_own_affair(world: World) -> None:
    world.run_to_training()
    world.kill_pod("worker")
    world.wait(10)
    assert world.phase() == (Phase.RUNNING, "Running")
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "Provisioning")
    world.run_kuberay()
    world.settle()
    assert world.condition(ConditionType.CLUSTER_READY) == ("True", "Ready")
    assert world.head().submitted == ["sort-1-0"]


def test_an_unreachable_head_is_asked_again(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    world.wait(120)
    assert world.phase() == (Phase.RUNNING, "HeadUnreachable")
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
    assert world.phase() == (Phase.RESTARTING, "ClusterLost")
    world.wait(31)
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.clusters == 1


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
        world.look((NAMESPACE, "sort"))
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
    world.head().finish(ExitCode.RETRIABLE, "DirtyCluster", "actors are left")
    world.wait(5)
    world.run_kuberay()
    fresh = world.pods()
    world.wait(200)
    assert world.pods() == fresh and world.head().submitted == ["sort-1-0", "sort-1-1"]


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
    world.wait(10)
    assert world.phase() == (Phase.RESTARTING, "HeadRefused")
    world.wait(60)
    assert world.clusters() == ["sort-2"]


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
