"""Somebody else's objects by the names that a job needs: told, and left as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_api.status import ConditionType, Phase
from rlhf_operator.kube.protocol import Kind

from .world import NAMESPACE, World, manifest

KEY = (NAMESPACE, "sort")


def ray_cluster(name: str = "sort-1", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": {"workerGroupSpecs": []},
    }


def children(world: World) -> str:
    return f"sort-{world.job()['metadata']['uid'][:8]}"


@pytest.mark.parametrize("labels", [{}, {"rlhf-operator.dev/job": "sort"}])
def test_a_cluster_of_that_name_is_not_taken_over(world: World, labels: dict[str, str]) -> None:
    world.kube.create(ray_cluster(labels=labels))
    before = copy.deepcopy(world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"])
    world.submit(manifest())
    world.wait(60)
    assert world.phase() == (Phase.PENDING, "NameTaken")
    assert "RayCluster named sort-1" in world.status().message
    assert world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"] == before
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.wait(world.settings.wait_seconds)
    assert world.phase()[0] is Phase.PROVISIONING


def test_a_cluster_that_takes_the_name_in_between_leads_to_another_name(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.kube.objects.pop((Kind.CLUSTER, NAMESPACE, "sort-1"))
    world.kube.create(ray_cluster())
    world.wait(world.settings.wait_seconds)
    world.wait(60)
    assert world.clusters() == ["sort-1", "sort-2"]
    assert world.phase()[0] is Phase.RESTARTING and "ClusterLost" in world.events()


def test_a_cluster_of_the_job_that_lost_its_label_is_still_its_own(world: World) -> None:
    world.run_to_training()
    world.kube.edit(Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each["metadata"].pop("labels"))
    world.wait(120)
    assert world.phase() == (Phase.RUNNING, "Running") and world.clusters() == ["sort-1"]
    world.head().finish()
    world.wait(10)
    assert world.phase()[0] is Phase.SUCCEEDED and world.clusters() == []


@pytest.mark.parametrize("kind", [Kind.CONFIG_MAP, Kind.POLICY])
def test_what_has_the_name_of_a_jobs_own_is_not_changed(world: World, kind: Kind) -> None:
    world.submit(manifest(suspend=True))
    world.settle()
    name = children(world)
    stranger = {
        "apiVersion": kind.value.api_version,
        "kind": kind.value.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "data": {"theirs": "1"},
    }
    world.kube.create(stranger)
    before = copy.deepcopy(world.kube.objects[kind, NAMESPACE, name])
    world.edit_job(suspend=False)
    for _ in range(4):
        world.seconds += 30
        world.look(KEY)
    assert world.kube.objects[kind, NAMESPACE, name] == before
    assert world.condition(ConditionType.CLUSTER_READY) == ("False", "NameTaken")
    told = next(
        each for each in world.status().conditions if each.type is ConditionType.CLUSTER_READY
    )
    assert f"{kind.value.kind} named {name}" in told.message and world.clusters() == []
    world.kube.remove(kind, NAMESPACE, name)
    world.settle()
    assert world.clusters() == ["sort-1"]
    made = world.kube.objects[kind, NAMESPACE, name]["metadata"]
    assert made["ownerReferences"][0]["uid"] == world.job()["metadata"]["uid"]


def test_the_jobs_own_are_brought_up_to_date_for_its_next_cluster(world: World) -> None:
    world.run_to_training()
    world.edit_job(suspend=True)
    world.wait(60)
    schedule = {**world.job()["spec"]["schedule"], "steps": 20}
    world.edit_job(schedule=schedule, suspend=False)
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    made = world.kube.objects[Kind.CONFIG_MAP, NAMESPACE, children(world)]
    assert "steps: 20" in made["data"]["job.yaml"]
