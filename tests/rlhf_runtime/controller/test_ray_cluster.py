"""A cluster is entered only when it is clean, and its nodes are waited for."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest
import ray
from ray.exceptions import RaySystemError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.controller import ray_cluster
from rlhf_runtime.controller.nodes import missing_nodes, node_bundles
from rlhf_runtime.controller.ray_cluster import RayCluster, cluster_leftovers
from rlhf_runtime.controller.reservation import NOT_YET, reserve
from rlhf_runtime.errors import DirtyCluster, NodesMissing, RayUnreachable

from ...waiting import wait_until

SECONDS = 60.0


def pool(devices: int) -> Pool:
    return Pool(
        name="cpu",
        device=Device.CPU,
        nodes=1,
        devices_per_node=devices,
        memory_bytes_per_device=1,
    )


def cluster(told: list[str], seconds: float = 0.2) -> RayCluster:
    return RayCluster("auto", seconds, told.append, lambda: None, lambda: None)


class Rank:
    """Holds a CPU for as long as it lives."""

    def ready(self) -> bool:
        return True


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_actors_groups_and_what_they_take_are_left_over_until_they_are_gone() -> None:
    wait_until(lambda: cluster_leftovers() == "", SECONDS, cluster_leftovers())
    actor = ray.remote(Rank).options(name="rank 0 in 1f0c", num_cpus=1).remote()
    ray.get(actor.ready.remote())
    wait_until(
        lambda: cluster_leftovers() == "actor rank 0, 1 CPU taken", SECONDS, cluster_leftovers()
    )
    ray.kill(actor)
    group = placement_group([{"CPU": 2.0}])
    wait_until(
        lambda: cluster_leftovers() == "1 placement groups, 2 CPU taken",
        SECONDS,
        cluster_leftovers(),
    )
    remove_placement_group(group)
    wait_until(lambda: cluster_leftovers() == "", SECONDS, cluster_leftovers())


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_nodes_that_do_not_come_are_told_and_nothing_stays_reserved() -> None:
    told: list[str] = []
    with pytest.raises(NodesMissing, match="got 0 of 1 nodes with 3 CPU") as missing:
        list(cluster(told).reserve([pool(1), pool(1)]))
    assert "startDeadlineSeconds" in str(missing.value)
    assert told[0].startswith(
        "waiting for nodes of pool cpu: 0 of 1 nodes with 3 CPU and 0 GPU are there"
    )
    states = {group["state"] for group in placement_group_table().values()}
    assert states <= {"REMOVED"}


@pytest.mark.ray
@pytest.mark.usefixtures("local_ray")
def test_nodes_that_only_seem_to_be_there_are_waited_for() -> None:
    """As in the seconds between a node's death and the time when Ray knows of it."""
    held = placement_group([{"CPU": 1.0}])
    wait_until(lambda: placement_group_table(held)["state"] == "CREATED", SECONDS, "a group")
    told: list[str] = []

    def tell(text: str) -> None:
        told.append(text)
        remove_placement_group(held)

    seen = [{"Alive": True, "Resources": {"CPU": 2.0, "pool-cpu": 1.0}}]
    no_devices = pool(1).model_copy(update={"devices_per_node": 0})
    bundles = node_bundles(no_devices)
    group = reserve(bundles, BoundedWait(SECONDS, tell), lambda: missing_nodes(no_devices, seen))
    assert told == [NOT_YET]
    remove_placement_group(group)


def clean_after(looks: int) -> Callable[[], str]:
    left = iter(["actor rank 0"] * looks)
    return lambda: next(left, "")


@pytest.fixture
def no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connecting succeeds, and what is left for 60 s is left for ever."""
    monkeypatch.setattr(ray_cluster.ray, "init", lambda **options: None)
    monkeypatch.setattr(ray_cluster, "CLEAN_SECONDS", 0.0)


@pytest.mark.usefixtures("no_ray")
def test_what_an_earlier_driver_left_makes_the_cluster_dirty(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_cluster, "cluster_leftovers", clean_after(looks=5))
    with pytest.raises(DirtyCluster, match="got actor rank 0 after"):
        cluster([]).open([pool(1)])


@pytest.mark.usefixtures("no_ray")
def test_what_vanishes_in_time_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    monkeypatch.setattr(ray_cluster, "CLEAN_SECONDS", SECONDS)
    monkeypatch.setattr(ray_cluster, "cluster_leftovers", clean_after(looks=1))
    cluster(told).open([pool(1)])
    assert told == ["waiting for an earlier driver's end: actor rank 0"]


def test_a_cluster_that_does_not_take_the_driver_is_worth_another_try(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(**options: object) -> None:
        raise ConnectionError("no GCS at 10.0.0.1:6379")

    monkeypatch.setattr(ray_cluster.ray, "init", refuse)
    with pytest.raises(RayUnreachable, match="ConnectionError: no GCS at 10.0.0.1:6379"):
        cluster([]).open([pool(1)])


def node(id: str, port: int, alive: bool = True) -> dict[str, object]:
    """A node as Ray lists it, on this machine."""
    return {
        "NodeID": id,
        "NodeManagerAddress": "127.0.0.1",
        "NodeManagerPort": port,
        "Alive": alive,
        "Resources": {},
    }


def test_nodes_are_lost_that_ray_counts_as_dead_or_whose_raylets_do_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as raylet:
        port = raylet.getsockname()[1]
        living = [node("head", port), node("worker", port)]
        monkeypatch.setattr(ray, "nodes", lambda: living)
        entered = cluster([])
        assert list(entered.reserve([])) == [] and entered.lost_nodes() == ""
        living[1] = node("worker", port, alive=False)
        living.append(node("another", port))
        assert entered.lost_nodes() == "127.0.0.1"
        assert list(entered.reserve([])) == [] and entered.lost_nodes() == "", "it has others now"
    # Ray has not noticed that yet.
    assert entered.lost_nodes() == "127.0.0.1, 127.0.0.1"


def test_a_ray_that_is_lost_itself_tells_nothing_of_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RaySystemError("no answer")

    monkeypatch.setattr(ray, "nodes", fail)
    assert cluster([]).lost_nodes() == ""
