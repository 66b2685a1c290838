"""What is taken of each node, and what a cluster lacks."""

from __future__ import annotations

from typing import Any

from rlhf_api.plan import PoolPlan
from rlhf_api.spec.resources import Device
from rlhf_runtime.controller.nodes import missing_nodes, node_bundles

HEAD: dict[str, Any] = {"Alive": True, "Resources": {"node:__internal_head__": 1.0}}


def pool(nodes: int, devices: int, device: Device = Device.GPU) -> PoolPlan:
    return PoolPlan(
        name="a",
        device=device,
        nodes=nodes,
        devices_per_node=devices,
        memory_bytes_per_device=1,
    )


def node(cpus: float, gpus: float = 0.0, alive: bool = True) -> dict[str, Any]:
    resources = {"CPU": cpus} | ({"GPU": gpus} if gpus else {})
    return {"Alive": alive, "Resources": resources}


def test_a_node_is_taken_as_a_whole_and_the_hosts_are_on_the_first() -> None:
    assert node_bundles(pool(2, 4)) == [{"CPU": 6.0, "GPU": 4.0}, {"CPU": 4.0, "GPU": 4.0}]
    assert node_bundles(pool(1, 2, Device.CPU)) == [{"CPU": 4.0}]


def test_of_several_pools_each_takes_its_own_nodes() -> None:
    large, mark = pool(1, 4), {"rlhf-pool-a": 1.0}
    assert node_bundles(large, is_only=False) == [{"CPU": 6.0, "GPU": 4.0} | mark]
    other = {"Alive": True, "Resources": {"CPU": 6.0, "GPU": 4.0, "rlhf-pool-b": 1.0}}
    own = {"Alive": True, "Resources": {"CPU": 6.0, "GPU": 4.0} | mark}
    assert missing_nodes(large, [other, own], is_only=False) == ""
    text = missing_nodes(large, [HEAD, other], is_only=False)
    assert text == "0 of 1 nodes with 6 CPU and 4 GPU are there; missing 1"


def test_nothing_is_missing_where_enough_nodes_fit() -> None:
    assert missing_nodes(pool(2, 4), [HEAD, node(6, 4), node(6, 4), node(6, 4)]) == ""


def test_dead_nodes_and_the_head_do_not_count() -> None:
    text = missing_nodes(pool(2, 4), [HEAD, node(6, 4), node(6, 4, alive=False)])
    assert text == "1 of 2 nodes with 6 CPU and 4 GPU are there; missing 1"


def test_nodes_that_offer_too_little_are_named() -> None:
    text = missing_nodes(pool(1, 4), [HEAD, node(6, 2)])
    assert text == (
        "0 of 1 nodes with 6 CPU and 4 GPU are there, besides 1 with 6 CPU and 2 GPU; missing 1"
    )
