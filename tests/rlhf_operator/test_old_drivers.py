"""A driver that was given up may still live: the next one waits for its end."""

from __future__ import annotations

import pytest

from rlhf_api.exits import ExitCode
from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Forbidden, KubeError
from rlhf_kube.kinds import Kind

from .troubled_world import KEY, TroubledWorld
from .world import NAMESPACE, manifest


@pytest.fixture
def world(troubled: TroubledWorld) -> TroubledWorld:
    return troubled


def test_a_cluster_that_is_let_in_again_before_its_pods_are_gone(world: TroubledWorld) -> None:
    world.run_job_to_training()
    world.suspend_cluster(True)
    world.settle()
    world.suspend_cluster(False)
    world.wait(30)
    assert world.phase() == (JobPhase.RUNNING, "Running")
    assert world.head().submitted == ["sort-1-0"] and world.head().driver.stops == 0
    assert world.status().restarts.total == 0


def test_a_head_that_takes_its_time_to_end(world: TroubledWorld) -> None:
    world.run_job_to_training()
    world.kill_pod("head")
    world.settle()
    world.run_kuberay()
    world.wait(60)
    assert world.phase()[0] is JobPhase.RESTARTING and world.head().submitted == ["sort-1-0"]
    world.run_kubelets()
    world.run_kuberay()
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"]


def test_a_suspension_that_is_taken_back_is_no_failure(world: TroubledWorld) -> None:
    world.run_job_to_training()
    world.edit_job(failurePolicy={"maxRestarts": 0})
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.settle()
    assert world.condition(ConditionType.SUSPENDED) == ("Unknown", "Stopping")
    world.edit_job(suspend=False)
    world.settle()
    assert world.condition(ConditionType.SUSPENDED) is None
    world.head().driver.kill()
    world.wait(10)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"] and world.clusters() == ["sort-1"]
    assert world.status().restarts.total == 0
    world.head().advance(2)
    world.wait(20)
    assert world.phase() == (JobPhase.RUNNING, "Running")


def test_submissions_of_other_people_are_left_alone(world: TroubledWorld) -> None:
    world.settle()
    world.run_kuberay()
    world.head().submit("debugging", "sleep 1000", {})
    world.head().submit("sort-10-0", "sleep 1000", {})
    world.settle()
    assert world.head().submitted[-1] == "sort-1-0"
    assert all(world.head().submissions[id].stops == 0 for id in ("debugging", "sort-10-0"))


def test_a_head_that_does_not_answer_is_waited_for_and_told(world: TroubledWorld) -> None:
    world.settle()
    world.head().go_down()
    world.run_kuberay()
    world.wait(60)
    assert world.phase() == (JobPhase.PROVISIONING, "HeadUnreachable")
    world.head().come_back()
    world.wait(5)
    assert world.head().submitted == ["sort-1-0"]


def test_a_head_that_falls_again_before_the_first_report_counts(world: TroubledWorld) -> None:
    world.settle()
    world.run_kuberay()
    for _ in range(4):
        world.wait(60)
        world.head().restart()  # its memory is too small for the driver
    world.wait(60)
    assert world.status().restarts.total >= 3


def test_a_job_that_lost_its_claim_goes_on_when_it_is_back(world: TroubledWorld) -> None:
    world.run_job_to_training()
    world.set_claim(False)
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.run_kubelets()
    world.wait(60)
    assert world.phase() == (JobPhase.PENDING, "ClaimNotFound")
    assert world.condition(ConditionType.SUSPENDED) is None
    world.set_claim(True)
    world.wait(31)
    assert world.clusters() == ["sort-2"]


def test_a_cluster_that_cannot_be_made_costs_no_gpus(world: TroubledWorld) -> None:
    def refuse(verb: str, kind: Kind) -> KubeError | None:
        return Forbidden("403: quota") if (verb, kind) == ("create", Kind.CLUSTER) else None

    before = world.kube.trouble
    world.kube.trouble = refuse
    world.reconcile(KEY)
    world.seconds += 3600
    world.reconcile(KEY)
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "KubernetesForbidden")
    assert world.status().gpus == 0 and world.status().gpu_seconds == 0
    world.kube.trouble = before
    world.settle()
    world.run_kuberay()
    world.settle()
    assert world.clusters() == ["sort-1"] and world.status().gpus == 8


def test_a_cluster_that_is_kept_and_goes_is_accounted_for_no_longer(world: TroubledWorld) -> None:
    world.edit_job(ttlSecondsAfterFinished=3600)
    world.run_job_to_training()
    world.head().finish()
    world.wait(10)
    assert world.phase()[0] is JobPhase.SUCCEEDED and world.status().gpus == 8
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.settle()
    assert world.status().gpus == 0 and world.status().cluster is None


def test_gpus_are_those_that_the_job_uses(world: TroubledWorld) -> None:
    world.kube.remove(Kind.JOB, *KEY)
    world.submit(manifest(placement={"maxDevices": 4}))
    world.settle()
    world.run_kuberay()
    world.settle()
    assert world.status().gpus == 4


def test_a_reason_that_kubernetes_does_not_take_is_told_in_another_form(
    world: TroubledWorld,
) -> None:
    world.run_job_to_training()
    world.head().finish(ExitCode.RETRIABLE, "_odd_", "words")
    world.wait(10)
    assert "Driver_odd_" in world.events()


def test_a_deadline_also_ends_a_job_between_two_clusters(world: TroubledWorld) -> None:
    world.edit_job(activeDeadlineSeconds=100)
    world.run_job_to_training()
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.wait(200)  # the pods of the cluster before do not end
    assert world.phase() == (JobPhase.FAILED, "DeadlineExceeded")


def test_a_job_that_finished_while_it_was_told_to_stop_has_succeeded(world: TroubledWorld) -> None:
    world.run_job_to_training()
    driver = world.head().driver
    driver.finish()
    world.edit_job(suspend=True)
    driver.stop()  # Ray forgets the exit code of what it was told to stop
    assert driver.exit_code is None
    world.wait(10)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
