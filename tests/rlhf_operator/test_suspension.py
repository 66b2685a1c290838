"""Jobs that wait: because they were told to, or because a queue says so."""

from __future__ import annotations

from rlhf_api.on_cluster import QUEUE_LABEL
from rlhf_api.status import ConditionType, JobPhase

from .world import World, manifest


def test_a_suspended_job_saves_gives_its_cluster_back_and_goes_on_later(world: World) -> None:
    world.run_to_training()
    world.head().advance(4, checkpoint=4)
    world.wait(15)
    world.edit_job(suspend=True)
    world.settle()
    assert world.head().driver.stops == 1
    world.wait(5)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested")
    assert world.condition(ConditionType.SUSPENDED) == ("True", "Requested")
    assert world.clusters() == [] and world.status().gpus == 0
    world.wait(600)
    world.edit_job(suspend=False)
    world.settle()
    assert world.clusters() == ["sort-2"]
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.total == 0
    assert world.condition(ConditionType.SUSPENDED) is None


def test_a_job_that_goes_on_later_waits_for_no_failure_of_before(world: World) -> None:
    world.run_to_training(manifest(failurePolicy={"maxRestarts": 9}))
    world.fail_driver()
    world.head().end(4)
    world.wait(5)
    assert world.phase() == (JobPhase.RESTARTING, "DriverFailed")
    world.edit_job(suspend=True)
    world.settle()
    restarts = world.status().restarts
    assert (restarts.since_checkpoint, restarts.in_a_row, restarts.total) == (0, 0, 2)
    world.edit_job(suspend=False)
    world.settle()
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    world.head("sort-2").end(4)
    world.wait(5)
    assert world.head("sort-2").submitted == ["sort-2-0", "sort-2-1"]


def test_a_driver_that_does_not_end_is_given_up(world: World) -> None:
    world.run_to_training()
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.wait(world.settings.stop_seconds - 10)
    assert world.phase()[0] is JobPhase.RUNNING and world.clusters() == ["sort-1"]
    world.wait(20)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested") and world.clusters() == []


def test_a_job_that_finishes_while_it_is_told_to_wait_has_succeeded(world: World) -> None:
    world.run_to_training()
    world.head().finish(lingers=False)
    world.edit_job(suspend=True)
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded") and world.clusters() == []


def test_the_deadline_does_not_run_while_a_job_waits(world: World) -> None:
    world.run_to_training(manifest(activeDeadlineSeconds=100))
    world.edit_job(suspend=True)
    world.wait(600)
    world.edit_job(suspend=False)
    world.settle()
    world.run_kuberay()
    world.wait(50)
    assert world.phase()[0] is JobPhase.RUNNING


def test_a_queued_job_is_pending_and_its_start_deadline_does_not_run(world: World) -> None:
    world.queue_holds = True
    job = manifest(startDeadlineSeconds=60)
    job["metadata"]["labels"] = {QUEUE_LABEL: "research"}
    world.submit(job)
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "Queued") and world.status().gpus == 0
    assert "the queue research (" in (world.status().message or "")
    world.wait(600)
    assert world.status().gpu_seconds == 0
    assert world.phase() == (JobPhase.PENDING, "Queued")
    world.suspend_cluster(False)
    world.settle()
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForPods") and world.status().gpus == 0
    world.run_kuberay()
    world.settle()
    assert world.status().gpus == 8
    assert world.head().submitted == ["sort-1-0"]


def test_an_evicted_job_goes_on_when_it_is_let_in_again(world: World) -> None:
    world.run_to_training()
    world.suspend_cluster(True)
    world.run_kuberay()
    world.settle()
    assert world.phase() == (JobPhase.SUSPENDED, "Evicted")
    assert world.status().restarts.total == 0 and world.status().gpus == 0
    world.wait(600)
    assert world.phase() == (JobPhase.SUSPENDED, "Evicted")
    world.suspend_cluster(False)
    world.settle()
    assert world.phase() == (JobPhase.PROVISIONING, "WaitingForPods")
    world.run_kuberay()
    world.settle()
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]
    assert world.status().restarts.total == 0
    world.head().advance(3)
    world.wait(15)
    assert world.phase() == (JobPhase.RUNNING, "Running") and world.status().gpus == 8


def test_a_suspension_that_is_taken_back_at_once_leaves_the_driver_alone(world: World) -> None:
    world.run_to_training(manifest(activeDeadlineSeconds=100))
    begin = world.status().start_time
    world.suspend_cluster(True)
    world.settle()
    assert world.phase() == (JobPhase.SUSPENDED, "Evicted")
    world.suspend_cluster(False)
    world.wait(10)
    assert world.phase() == (JobPhase.RUNNING, "Running") and world.status().gpus == 8
    assert world.head().submitted == ["sort-1-0"]
    assert world.status().start_time == begin


def test_gpus_are_counted_while_pods_occupy_them(world: World) -> None:
    pools = [{"name": "a100", "nodes": 2, "devicesPerNode": 4, "gpu": "A100-80G"}]
    world.submit(manifest(resources={"nodePools": pools}))
    world.settle()
    world.run_kuberay(ready=False)
    world.wait(600)
    assert world.status().gpus == 0 and world.status().gpu_seconds == 0, "its pods have no node"
    head, first, second = sorted(world.pods())
    for pod in (head, first):
        world.bind(pod)
    world.wait(1)
    assert world.status().gpus == 4
    world.bind(second)
    world.wait(100)
    assert world.status().gpus == 8
    world.set_pod(second, phase="Failed")
    world.wait(1)
    assert world.status().gpus == 4, "it has ended"
    assert world.status().gpu_seconds >= 400


def test_an_evicted_job_that_is_told_to_wait_leaves_the_queue(world: World) -> None:
    world.run_to_training()
    world.suspend_cluster(True)
    world.run_kuberay()
    world.settle()
    world.edit_job(suspend=True)
    world.settle()
    assert world.phase() == (JobPhase.SUSPENDED, "Requested") and world.clusters() == []
    assert world.condition(ConditionType.SUSPENDED) == ("True", "Requested")
    world.edit_job(suspend=False)
    world.settle()
    world.run_kuberay()
    world.settle()
    assert world.head("sort-2").submitted == ["sort-2-0"]
    assert world.status().restarts.total == 0
