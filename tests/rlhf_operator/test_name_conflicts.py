"""Somebody else's objects by the names that a job needs: told, and left as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from rlhf_api.status import JobPhase
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, manifest


def ray_cluster(name: str = "sort-1", **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": NAMESPACE, **metadata},
        "spec": {"workerGroupSpecs": []},
    }


COMPANIONS = (Kind.CONFIG_MAP, Kind.POLICY, Kind.SECRET)


def owned_objects(world: World) -> set[tuple[Kind, str]]:
    """ConfigMaps, Secrets and NetworkPolicies of clusters."""
    return {(kind, name) for kind, _, name in world.kube.objects if kind in COMPANIONS}


def children(world: World) -> str:
    return f"sort-{world.job()['metadata']['uid'][:8]}"


@pytest.mark.parametrize("labels", [{}, {"rlhf-operator.dev/job": "sort"}])
def test_a_cluster_of_that_name_is_not_taken_over(world: World, labels: dict[str, str]) -> None:
    world.kube.create(ray_cluster(labels=labels))
    before = copy.deepcopy(world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"])
    world.submit(manifest())
    world.wait(60)
    assert world.phase() == (JobPhase.PENDING, "NameTaken")
    assert "RayCluster named sort-1" in world.status().message
    assert world.kube.objects[Kind.CLUSTER, NAMESPACE, "sort-1"] == before
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.wait(world.settings.wait_seconds)
    assert world.phase()[0] is JobPhase.PROVISIONING


def test_a_cluster_that_takes_the_name_in_between_leads_to_another_name(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.kube.create(ray_cluster())
    world.wait(world.settings.wait_seconds)
    world.wait(60)
    assert world.clusters() == ["sort-1", "sort-2"]
    assert world.phase()[0] is JobPhase.RESTARTING and "ClusterLost" in world.events()


def test_a_cluster_of_the_job_that_lost_its_label_is_still_its_own(world: World) -> None:
    world.run_to_training()
    world.kube.edit(Kind.CLUSTER, NAMESPACE, "sort-1", lambda each: each["metadata"].pop("labels"))
    world.wait(120)
    assert world.phase() == (JobPhase.RUNNING, "Running") and world.clusters() == ["sort-1"]
    world.head().finish()
    world.wait(10)
    assert world.phase()[0] is JobPhase.SUCCEEDED and world.clusters() == []


def test_what_stands_beside_a_cluster_is_named_by_its_content(world: World) -> None:
    world.run_to_training()
    before = owned_objects(world)
    world.kill_pod("head")
    world.run_kuberay()
    world.wait(60)
    assert owned_objects(world) == before, "nothing is changed, nothing is made twice"
    schedule = {**world.job()["spec"]["schedule"], "steps": 20}
    world.edit_job(suspend=True)
    world.edit_job(schedule=schedule, suspend=False)
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    (new,) = owned_objects(world) - before
    assert new[0] is Kind.CONFIG_MAP and new[1].startswith(f"{children(world)}-")
    assert world.manifest_of("sort-2")["spec"]["schedule"]["steps"] == 20
    assert all(verb == "create" for verb, kind in world.kube.writes if kind in COMPANIONS)
