"""Jobs whose plan takes a part of their pools: their clusters are as large as the plan."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.plan_estimate import PoolPart
from rlhf_api.reading.validation import validate_document
from rlhf_api.spec.job import RLHFJob
from rlhf_api.status import ConditionType, JobPhase, PlanStatus
from rlhf_kube.kinds import Kind
from rlhf_operator.decide.node_pools import cluster_job
from rlhf_operator.decide.observed import PlanResult
from rlhf_operator.observe.planner import make_plan_result

from .world import NAMESPACE, World, manifest

PART: dict[str, Any] = {"placement": {"objective": {"type": "DeviceTime"}}}


def seen(nodes: int, per_node: int) -> PlanResult:
    """A plan of so many devices."""
    parts = (PoolPart(name="a100", nodes=nodes, devices_per_node=per_node),)
    status = PlanStatus(placement="Colocated", pools=parts, peak_memory_bytes=1, summary="all")
    return PlanResult(plan=status)


def size_of(world: World, cluster: str) -> tuple[int, str]:
    """Workers of a cluster, and GPUs of each."""
    [group] = world.kube.objects[Kind.CLUSTER, NAMESPACE, cluster]["spec"]["workerGroupSpecs"]
    [container] = group["template"]["spec"]["containers"]
    return group["replicas"], container["resources"]["limits"]["nvidia.com/gpu"]


def test_its_cluster_is_as_large_as_the_plan(world: World) -> None:
    world.planner.answer = seen(1, 2)
    world.run_to_training(manifest(**PART))
    assert size_of(world, "sort-1") == (1, "2") and world.status().gpus == 2
    [pool] = world.manifest_of("sort-1")["spec"]["resources"]["nodePools"]
    assert (pool.get("nodes", 1), pool["devicesPerNode"]) == (1, 2)
    world.wait(60)
    assert world.clusters() == ["sort-1"] and world.status().restarts.total == 0


def test_a_cluster_that_is_made_again_is_as_large(world: World) -> None:
    world.planner.answer = seen(1, 4)
    world.submit(manifest(**PART))
    world.settle()
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.planner.answer = None
    world.wait(60)
    assert world.clusters() == ["sort-1"] and size_of(world, "sort-1") == (1, "4")


def test_the_whole_pool_is_taken_without_such_an_objective(world: World) -> None:
    world.planner.answer = seen(2, 4)
    world.run_to_training()
    assert size_of(world, "sort-1") == (2, "4")
    assert "placement" not in world.manifest_of("sort-1")["spec"]


def test_without_a_plan_nothing_is_made_and_the_next_plan_is_followed(world: World) -> None:
    world.planner.answer = PlanResult(unknown="the planner failed; the driver plans")
    world.submit(manifest(**PART))
    world.settle()
    assert world.phase() == (JobPhase.PENDING, "PlanUnknown") and world.clusters() == []
    assert "takes as many devices as the plan says" in world.status().message
    world.planner.answer = seen(1, 1)
    world.wait(world.settings.wait_seconds)
    assert size_of(world, "sort-1") == (1, "1")
    assert world.condition(ConditionType.ACCEPTED) == ("True", "Accepted")


def test_another_objective_is_another_cluster_once_the_job_was_suspended(world: World) -> None:
    world.planner.answer = seen(1, 2)
    world.run_to_training(manifest(**PART))
    world.head().advance(4, checkpoint=4)
    world.edit_job(suspend=True)
    world.wait(10)
    world.planner.answer = seen(2, 4)
    slow = {"objective": {"type": "FewestDevices", "maxStepSeconds": 1.5}}
    world.edit_job(suspend=False, placement=slow)
    world.wait(10)
    assert world.clusters() == ["sort-2"] and size_of(world, "sort-2") == (2, "4")
    assert world.manifest_of("sort-2")["spec"]["placement"] == slow
    assert world.status().restarts.total == 0


def test_a_plan_of_an_earlier_manifest_is_forgotten_where_none_can_be_made(world: World) -> None:
    world.planner.answer = seen(1, 2)
    world.run_to_training(manifest(**PART))
    world.edit_job(suspend=True)
    world.wait(10)
    world.planner.answer = PlanResult(unknown="the driver plans")
    world.edit_job(suspend=False, placement={})
    world.wait(10)
    assert size_of(world, "sort-2") == (2, "4") and world.status().plan is None


@pytest.mark.parametrize("limit", [{}, {"maxDevices": 6}])
def test_the_driver_finds_the_same_plan_in_what_its_cluster_has(limit: dict[str, Any]) -> None:
    whole = RLHFJob.model_validate(manifest(placement=PART["placement"] | limit))
    plan = make_plan_result(whole).plan
    assert plan is not None
    run = cluster_job(whole, plan)
    document = run.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert validate_document(document)[1] == []
    assert sum(pool.num_devices for pool in run.spec.resources.node_pools) < 8
    assert make_plan_result(run).plan == plan
