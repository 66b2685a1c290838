"""What is taken of each node, and what a cluster lacks."""

from __future__ import annotations

from typing import Any

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_planner.plan import make_plan, pools_of
from rlhf_runtime.controller.nodes import (
    Node,
    cluster_bundles,
    missing_nodes,
    node_bundles,
    rank_nodes,
    reward_hosts,
)
from rlhf_runtime.controller.worker_groups import HostGroup

from .jobs import make_job

HEAD: dict[str, Any] = {"Alive": True, "Resources": {"node:__internal_head__": 1.0}}


def pool(nodes: int, devices: int, device: Device = Device.GPU) -> Pool:
    return Pool(
        name="a",
        device=device,
        nodes=nodes,
        devices_per_node=devices,
        memory_bytes_per_device=1,
    )


def node(cpus: float, gpus: float = 0.0, alive: bool = True, pool: str = "a") -> dict[str, Any]:
    resources = {"CPU": cpus, f"pool-{pool}": 1.0} | ({"GPU": gpus} if gpus else {})
    return {"Alive": alive, "Resources": resources}


def test_a_node_is_taken_as_a_whole_with_room_for_a_host_and_the_first_for_two() -> None:
    assert node_bundles(pool(2, 4)) == [{"CPU": 6.0, "GPU": 4.0}, {"CPU": 5.0, "GPU": 4.0}]
    assert node_bundles(pool(1, 2, Device.CPU)) == [{"CPU": 4.0}]
    first, second = cluster_bundles(pool(2, 4))
    assert first == {"CPU": 6.0, "GPU": 4.0, "pool-a": 1.0}
    assert second == {"CPU": 5.0, "GPU": 4.0, "pool-a": 1.0}


def test_every_node_of_the_policys_pool_has_a_host_of_rewards() -> None:
    _, plan = make_plan(make_job(), pools_of(make_job(), 1))
    assert reward_hosts(plan) == {"reward": Node(plan.policy_pool.name, 0)}
    on_two = plan.policy_pool.model_copy(update={"nodes": 2, "devices_per_node": 2})
    several = plan.model_copy(update={"pools": (on_two, pool(3, 1))})
    nodes = [Node(on_two.name, 0), Node(on_two.name, 1)]
    assert reward_hosts(several) == {"reward 0": nodes[0], "reward 1": nodes[1]}
    assert rank_nodes(on_two) == [nodes[0], nodes[0], nodes[1], nodes[1]]


def test_nothing_is_missing_where_enough_nodes_fit() -> None:
    assert missing_nodes(pool(2, 4), [HEAD, node(6, 4), node(6, 4), node(6, 4)]) == ""


def test_dead_nodes_and_the_head_do_not_count() -> None:
    text = missing_nodes(pool(2, 4), [HEAD, node(6, 4), node(6, 4, alive=False)])
    assert text == "1 of 2 nodes with 6 CPU and 4 GPU are there; missing 1"


def test_nodes_of_another_pool_do_not_count() -> None:
    text = missing_nodes(pool(1, 4), [HEAD, node(6, 4, pool="b")])
    assert text == "0 of 1 nodes with 6 CPU and 4 GPU are there; missing 1"


def test_nodes_that_offer_too_little_are_named() -> None:
    text = missing_nodes(pool(1, 4), [HEAD, node(6, 2)])
    assert text == (
        "0 of 1 nodes with 6 CPU and 4 GPU are there, besides 1 with 6 CPU and 2 GPU; missing 1"
    )


def test_a_rank_knows_the_host_of_its_shards_unless_hosts_take_turns() -> None:
    here, there, elsewhere = Node("a", 0), Node("a", 1), Node("b", 0)
    one, other = object(), object()
    hosts = HostGroup.__new__(HostGroup)
    hosts.workers, hosts.nodes = (one, other), (here, there)
    assert [hosts.host_for(node) for node in (here, there, elsewhere)] == [one, other, None]
    hosts.workers, hosts.nodes = (one,), (here,)
    assert hosts.host_for(elsewhere) is one
