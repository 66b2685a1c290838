"""A job on several node pools says which of them lacks pods, and why."""

from __future__ import annotations

from typing import Any

from rlhf_api.status import ConditionType
from rlhf_kube.kinds import Kind

from .world import NAMESPACE, World, manifest


def ready(world: World) -> str:
    """What is said of the cluster's readiness."""
    conditions = {each.type: each.message for each in world.status().conditions}
    return conditions[ConditionType.CLUSTER_READY]


def two_pools(nodes: int = 1) -> dict[str, Any]:
    """PPO with its critic in a pool of its own."""
    pool = {"devicesPerNode": 1, "gpu": "A100-80G"}
    pools = [{**pool, "name": "actors"}, {**pool, "name": "critics", "nodes": nodes}]
    models = {"critic": {"source": {"sameAs": "actor"}}}
    job = manifest(
        algorithm={"type": "PPO"},
        placement={"type": "Split"},
        resources={"nodePools": pools},
    )
    job["spec"]["models"] |= models
    return job


def of_pool(world: World, pool: str) -> list[str]:
    return [pod for pod in world.pods() if world.labels_of(pod)["ray.io/group"] == pool]


def find_no_room(world: World, pod: str) -> None:
    """What the scheduler says of a pod."""
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
    world.set_pod(pod, conditions=[{**condition, "message": "0/4 nodes"}])


def test_which_pool_waits_for_what_is_told(world: World) -> None:
    """Not only by a pod's name, of which KubeRay leaves no more of a pool's than has room."""
    world.submit(two_pools(nodes=4))
    world.settle()
    world.run_kuberay(ready=False)
    (head,) = of_pool(world, "headgroup")
    (actor,) = of_pool(world, "actors")
    first, *critics = of_pool(world, "critics")
    for pod in (head, actor, first):
        world.set_pod(pod, conditions=[{"type": "Ready", "status": "True"}])
    world.settle()
    assert ready(world) == "3 of 6 pods are ready, of pool critics 1 of 4"
    for pod in critics:
        find_no_room(world, pod)
    world.settle()
    waits = f"{critics[0]} of pool critics: no node fits: 0/4 nodes"
    assert ready(world) == f"3 of 6 pods are ready, of pool critics 1 of 4; {waits}; and 2 more"
    assert world.status().message == ready(world) and waits in world.told("Unschedulable")


def test_each_pool_that_waits_is_told_before_a_second_pod_of_one(world: World) -> None:
    world.submit(two_pools(nodes=4))
    world.settle()
    world.run_kuberay(ready=False)
    pods = of_pool(world, "critics") + of_pool(world, "actors")
    for pod in pods:
        find_no_room(world, pod)
    world.settle()
    assert "of pool actors 0 of 1, of pool critics 0 of 4" in ready(world)
    for pod in (pods[0], pods[-1]):
        assert f"{pod} of pool {world.labels_of(pod)['ray.io/group']}: no node" in ready(world)
    assert ready(world).endswith("; and 3 more")


def test_a_job_of_one_pool_counts_all_its_pods(world: World) -> None:
    world.submit(manifest())
    world.settle()
    world.run_kuberay(ready=False)
    world.settle()
    assert ready(world) == "0 of 3 pods are ready"


def test_a_pod_that_has_ended_is_told_by_its_name_and_pool(world: World) -> None:
    world.run_to_training(two_pools())
    (pod,) = of_pool(world, "critics")
    ended = {"terminated": {"exitCode": 1}}
    world.set_pod(pod, conditions=[], containerStatuses=[{"name": "ray-worker", "state": ended}])
    world.tell_pod(pod)
    world.kube.remove(Kind.POD, NAMESPACE, pod)
    world.settle()
    said = f"{pod} of pool critics: container ray-worker ended with exit code 1"
    assert ready(world) == f"2 of 3 pods are ready, of pool critics 0 of 1; lately: {said}"
    assert world.told("ContainerFailed") == [said]


def test_a_problem_of_an_earlier_cluster_explains_nothing(world: World) -> None:
    world.run_to_training(two_pools())
    (pod,) = of_pool(world, "critics")
    ended = {"terminated": {"exitCode": 1}}
    world.set_pod(pod, conditions=[], containerStatuses=[{"name": "ray-worker", "state": ended}])
    world.tell_pod(pod)
    world.kube.remove(Kind.CLUSTER, NAMESPACE, "sort-1")
    world.wait(60)
    assert world.clusters() == ["sort-2"]
    world.run_kuberay(ready=False)
    world.settle()
    assert ready(world) == "0 of 3 pods are ready, of pool actors 0 of 1, of pool critics 0 of 1"
