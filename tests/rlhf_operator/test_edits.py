"""A manifest that changes is what runs from then on; defaults that change are not."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.status import ConditionType, JobPhase
from rlhf_operator.config import JobDefaults

from .world import World, claim, manifest

LONGER: dict[str, Any] = {"schedule": {"steps": 60, "promptsPerStep": 4}}
OTHER_IMAGE: dict[str, Any] = {"image": {"runtime": "runtime:2"}}


def steps_of(world: World, cluster: str) -> int:
    """As the drivers of a cluster read them."""
    steps = world.manifest_of(cluster)["spec"]["schedule"]["steps"]
    assert isinstance(steps, int)
    return steps


@pytest.mark.parametrize("edit", [LONGER, OTHER_IMAGE], ids=["driver", "cluster"])
def test_what_is_changed_before_the_driver_has_ended_is_what_runs_next(
    world: World, edit: dict[str, Any]
) -> None:
    world.run_to_training()
    world.head().advance(4, checkpoint=4)
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.wait(5)
    world.edit_job(suspend=False, **edit)
    world.settle()
    assert world.phase() == (JobPhase.RESTARTING, "ManifestChanged")
    assert world.clusters() == ["sort-1"], "it saves first"
    world.head().driver.kill()
    world.wait(5)
    assert world.clusters() == ["sort-2"]
    made = world.manifest_of("sort-2")["spec"]
    assert {name: made[name] for name in edit} == edit
    world.run_to_end()
    assert world.phase() == (JobPhase.SUCCEEDED, "Succeeded")
    assert world.status().restarts.total == 0


def test_what_is_changed_while_the_operator_is_away_is_what_runs_next(world: World) -> None:
    world.run_to_training()
    world.edit_job(suspend=True)
    world.edit_job(**LONGER)
    world.edit_job(suspend=False)
    world.start_operator()
    world.settle()
    assert world.head().driver.stops == 1
    world.wait(5)
    assert world.clusters() == ["sort-2"] and steps_of(world, "sort-2") == 60


def test_a_driver_that_does_not_end_does_not_hold_up_what_was_changed(world: World) -> None:
    world.run_to_training()
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.edit_job(suspend=False, **LONGER)
    world.wait(world.settings.stop_seconds - 10)
    assert world.clusters() == ["sort-1"]
    world.wait(20)
    assert world.clusters() == ["sort-2"]


def test_the_end_of_the_old_manifest_is_not_that_of_the_new_one(world: World) -> None:
    world.run_to_training()
    world.edit_job(suspend=True, **LONGER)
    world.head().finish(lingers=False)
    world.wait(10)
    assert world.phase() == (JobPhase.SUSPENDED, "Requested")
    world.edit_job(suspend=False)
    world.settle()
    assert steps_of(world, "sort-2") == 60


def test_a_cluster_that_was_not_let_in_yet_is_made_of_what_was_changed(world: World) -> None:
    world.queue_holds = True
    world.submit(manifest())
    world.settle()
    world.edit_job(suspend=True)
    world.edit_job(suspend=False, **LONGER)
    world.settle()
    assert world.clusters() == ["sort-2"] and steps_of(world, "sort-2") == 60
    assert world.phase() == (JobPhase.PENDING, "Queued")


def test_what_may_change_while_a_job_runs_disturbs_no_driver(world: World) -> None:
    world.run_to_training()
    world.edit_job(
        activeDeadlineSeconds=1000,
        startDeadlineSeconds=100,
        ttlSecondsAfterFinished=10,
        failurePolicy={"maxRestarts": 1},
    )
    world.wait(60)
    assert world.phase()[0] is JobPhase.RUNNING and world.head().submitted == ["sort-1-0"]


def test_a_suspension_taken_back_waits_for_the_driver_and_keeps_the_cluster(world: World) -> None:
    world.run_to_training()
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.wait(5)
    world.edit_job(suspend=False)
    world.wait(5)
    assert world.phase() == (JobPhase.RESTARTING, "WaitingForOldDriver")
    world.head().driver.kill()
    world.wait(5)
    assert world.head().submitted == ["sort-1-0", "sort-1-1"] and world.clusters() == ["sort-1"]
    assert world.status().restarts.total == 0


def test_a_suspension_taken_back_costs_the_cluster_of_a_driver_that_does_not_end(
    world: World,
) -> None:
    world.run_to_training()
    world.head().driver.stubborn = True
    world.edit_job(suspend=True)
    world.wait(5)
    world.edit_job(suspend=False)
    world.wait(world.settings.stop_seconds + 10)
    assert world.clusters() == ["sort-2"]


def test_a_cluster_of_an_earlier_release_is_taken_for_that_of_the_manifest(world: World) -> None:
    world.run_to_training()
    cluster = world.job()["status"]["cluster"]
    del cluster["manifestDigest"]
    world.start_operator()
    world.wait(60)
    assert world.phase()[0] is JobPhase.RUNNING and world.head().submitted == ["sort-1-0"]
    world.edit_job(suspend=True)
    world.edit_job(suspend=False, **LONGER)
    world.wait(10)
    assert world.clusters() == ["sort-2"]


def test_a_job_that_has_ended_says_that_a_change_comes_too_late(world: World) -> None:
    world.run_to_training()
    world.head().finish()
    world.wait(10)
    world.edit_job(suspend=True, **LONGER)
    world.settle()
    assert world.phase()[0] is JobPhase.SUCCEEDED
    (told,) = world.told("JobHasEnded")
    assert "delete it, and create it again with the same name" in told


# Defaults of the chart


def bare() -> dict[str, Any]:
    """A job that leaves to the chart what it can."""
    made = manifest()
    for name in ("image", "checkpoint", "resources"):
        del made["spec"][name]
    return made


def chart(number: int) -> JobDefaults:
    """One release's defaults."""
    return JobDefaults.model_validate(
        {
            "image": {"runtime": f"runtime:{number}"},
            "nodePools": [{"name": f"pool-{number}", "nodes": 1, "devicesPerNode": 2}],
            "storage": {"persistentVolumeClaim": {"claimName": f"claim-{number}"}},
            "worker": {"memory": f"{number}Gi"},
        }
    )


def test_a_job_keeps_the_defaults_of_its_acceptance(world: World) -> None:
    for number in (1, 2):
        world.kube.create(claim(f"claim-{number}"))
    world.defaults = chart(1)
    world.start_operator()
    world.run_to_training(bare())
    pinned = world.status().defaults
    assert pinned is not None and pinned.storage is not None
    world.defaults = chart(2)
    world.start_operator()
    world.wait(60)
    assert world.head().submitted == ["sort-1-0"], "its driver is not disturbed"
    world.edit_job(suspend=True)
    world.wait(5)
    world.edit_job(suspend=False)
    world.settle()
    assert world.status().defaults == pinned
    spec = world.manifest_of("sort-2")["spec"]
    storage = spec["checkpoint"]["storage"]["persistentVolumeClaim"]
    assert storage["claimName"] == "claim-1" and spec["image"]["runtime"] == "runtime:1"
    (pool,) = spec["resources"]["nodePools"]
    assert (pool["name"], pool["resources"]["memory"]) == ("pool-1", "1Gi")
    assert (world.status().artifacts.model or "").startswith("pvc://claim-1/")


def test_a_job_that_was_not_accepted_yet_gets_the_defaults_of_now(world: World) -> None:
    world.submit(bare())
    world.settle()
    assert world.condition(ConditionType.ACCEPTED) == ("False", "NoImage")
    assert world.status().defaults is None
    world.kube.create(claim("claim-2"))
    world.defaults = chart(2)
    world.start_operator()
    world.wait(60)
    assert world.manifest_of("sort-1")["spec"]["image"]["runtime"] == "runtime:2"


def test_only_what_a_manifest_leaves_out_is_pinned(world: World) -> None:
    world.defaults = chart(1)
    world.start_operator()
    world.run_to_training()
    pinned = world.status().defaults
    assert pinned is not None
    assert (pinned.image, pinned.node_pools, pinned.storage) == (None, (), None)
    assert pinned.worker.memory == "1Gi", "its pool says nothing of memory"


def test_a_default_that_the_chart_gets_later_disturbs_no_job(world: World) -> None:
    world.run_to_training()
    world.defaults = chart(2)
    world.start_operator()
    world.wait(60)
    assert world.clusters() == ["sort-1"] and world.head().submitted == ["sort-1-0"]
    assert world.phase()[0] is JobPhase.RUNNING
