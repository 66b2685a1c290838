"""What does not come about is not waited for in silence, nor for ever."""

from __future__ import annotations

from typing import Any

from rlhf_api.status import ConditionType, JobPhase
from rlhf_kube.errors import Forbidden
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, manifest

UNREADABLE: dict[str, Any] = {"algorithm": {"type": "an-algorithm-of-another-version"}}


def test_a_cluster_that_is_refused_is_asked_for_until_the_start_deadline(world: World) -> None:
    world.kube.trouble = lambda verb, kind: (
        Forbidden("403: exceeded quota") if verb == "create" and kind is Kind.CLUSTER else None
    )
    world.submit(manifest(startDeadlineSeconds=100))
    for _ in range(10):
        world.reconcile((NAMESPACE, "sort"))
        world.seconds += 30
    assert world.phase() == (JobPhase.FAILED, "StartDeadlineExceeded")
    assert "exceeded quota" in (world.status().message or "")


def test_a_head_that_is_silent_for_a_minute_is_told_once(world: World) -> None:
    world.run_to_training()
    world.head().go_down()
    world.wait(40)
    assert world.phase() == (JobPhase.RUNNING, "Running")
    world.wait(40)
    assert world.phase() == (JobPhase.RUNNING, "HeadUnreachable")
    version = world.job()["metadata"]["resourceVersion"]
    world.wait(50)
    assert world.job()["metadata"]["resourceVersion"] == version
    assert world.events().count("HeadUnreachable") == 1
    world.head().come_back()
    world.head().advance(3)
    world.wait(10)
    assert world.phase() == (JobPhase.RUNNING, "Running")


def test_a_driver_whose_manifest_cannot_be_read_any_more_is_followed_to_its_end(
    world: World,
) -> None:
    world.run_to_training()
    world.edit_job(**UNREADABLE)
    world.wait(5)
    assert world.condition(ConditionType.ACCEPTED) == ("False", "InvalidManifest")
    world.head().advance(5)
    world.wait(20)
    progress = world.status().progress
    assert progress is not None and progress.step == 5
    world.head().finish()
    world.wait(60)
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.clusters() == []


def test_nothing_is_started_by_a_manifest_that_cannot_be_read_any_more(world: World) -> None:
    world.run_to_training()
    world.edit_job(**UNREADABLE)
    world.head().end(4)
    world.wait(60)
    assert world.phase()[0] is JobPhase.FAILED
    assert "manifest is not readable" in (world.status().message or "")
    assert world.clusters() == [] and world.head().submitted == ["sort-1-0"]


def test_a_cluster_is_not_made_for_a_manifest_that_cannot_be_read_any_more(world: World) -> None:
    world.kube.trouble = lambda verb, kind: (
        Forbidden("403: exceeded quota") if verb == "create" and kind is Kind.CLUSTER else None
    )
    world.submit(manifest())
    world.reconcile((NAMESPACE, "sort"))
    world.reconcile((NAMESPACE, "sort"))
    world.edit_job(**UNREADABLE)
    world.kube.trouble = lambda verb, kind: None
    world.wait(120)
    assert world.clusters() == []
    assert world.condition(ConditionType.ACCEPTED) == ("False", "InvalidManifest")


def test_a_job_whose_manifest_can_be_read_again_is_accepted_also_if_it_is_to_wait(
    world: World,
) -> None:
    world.run_to_training()
    readable = world.job()["spec"]["algorithm"]["type"]
    world.edit_job(**UNREADABLE)
    world.wait(5)
    world.edit_job(algorithm={"type": readable}, suspend=True)
    world.wait(5)
    assert world.condition(ConditionType.ACCEPTED) == ("True", "Accepted")


def test_no_driver_is_started_by_a_manifest_that_cannot_be_read_until_it_can(world: World) -> None:
    world.submit(manifest())
    world.settle()
    readable = world.job()["spec"]["algorithm"]["type"]
    world.edit_job(**UNREADABLE)
    world.run_kuberay()
    world.wait(120)
    assert world.head().submitted == []
    assert world.condition(ConditionType.ACCEPTED) == ("False", "InvalidManifest")
    world.edit_job(algorithm={"type": readable})
    world.wait(60)
    assert world.head().submitted == ["sort-1-0"]
    assert world.condition(ConditionType.ACCEPTED) == ("True", "Accepted")
