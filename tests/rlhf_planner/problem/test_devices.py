"""Devices from a manifest or from the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.placement import PlacementSpec
from rlhf_api.spec.resources import Device, NodePool
from rlhf_flow.errors import DevicesUnknown
from rlhf_planner.problem.devices import (
    GIB,
    inventory_from_pools,
    limit_devices,
    local_inventory,
    similar_gpus,
)
from rlhf_sizing.machine import machine_memory_bytes


def pool(**fields: Any) -> NodePool:
    return NodePool.model_validate({"name": "pool"} | fields)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"gpu": "H100"}, 80 * 10**9),
        ({"gpu": "unheard-of", "memoryPerDevice": "10Gi"}, 10 * GIB),
        ({"device": "CPU", "devicesPerNode": 4, "resources": {"memory": "64Gi"}}, 16 * GIB),
        ({"device": "CPU", "memoryPerDevice": "1.5Gi"}, 3 * GIB // 2),
    ],
)
def test_memory_of_a_pool(fields: dict[str, Any], expected: int) -> None:
    (devices,) = inventory_from_pools((pool(**fields),))
    assert devices.memory_bytes_per_device == expected


@pytest.mark.parametrize(
    ("pools", "error", "message"),
    [
        ((), DevicesUnknown, "no resources.nodePools.*--devices"),
        ((pool(),), DevicesUnknown, "got gpu none in resources.nodePools pool.*H100"),
        ((pool(gpu="Z9"),), DevicesUnknown, "got gpu Z9.*; name one of these or set memoryPer"),
        ((pool(gpu="H10O"),), DevicesUnknown, r"did you mean H100\? Else set memoryPerDevice"),
        ((pool(device="CPU"),), DevicesUnknown, "memory of a CPU device"),
    ],
)
def test_pools_that_cannot_be_planned(
    pools: tuple[NodePool, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        inventory_from_pools(pools)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("h100", ["H100"]),
        ("NVIDIA-H100-80GB-HBM3", ["H100-80G"]),
        ("NVIDIA GeForce RTX 4090", ["RTX-4090"]),
        ("nvidia-tesla-t4", ["T4"]),
        ("A100", ["A100-40G", "A100-80G"]),
        ("A100-80GB", ["A100-80G"]),
        ("H100-SXM", ["H100"]),
        ("MI300X", []),
        ("", []),
    ],
)
def test_other_spellings_of_gpus_are_known(name: str, meant: list[str]) -> None:
    assert similar_gpus(name) == meant


@pytest.mark.parametrize(
    ("limit", "expected"), [(None, (4, 8)), (100, (4, 8)), (17, (2, 8)), (8, (1, 8)), (3, (1, 3))]
)
def test_a_limit_takes_whole_nodes_or_a_part_of_one(
    limit: int | None, expected: tuple[int, int]
) -> None:
    (devices,) = inventory_from_pools((pool(gpu="H100", nodes=4),))
    taken = limit_devices(devices, PlacementSpec(max_devices=limit))
    assert (taken.nodes, taken.devices_per_node) == expected
    assert (taken.name, taken.gpu) == ("pool", "H100")


def machine(root: Path, kilobytes: int, limit: str | None = None) -> Path:
    (root / "proc").mkdir()
    (root / "proc/meminfo").write_text(f"MemFree: 1 kB\nMemTotal:  {kilobytes} kB\n")
    if limit is not None:
        (root / "sys/fs/cgroup").mkdir(parents=True)
        (root / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
    return root


def test_ranks_of_a_machine_share_what_is_left_of_its_memory(tmp_path: Path) -> None:
    total = machine_memory_bytes(machine(tmp_path, 9 * 2**20))
    assert total == 9 * GIB
    devices = local_inventory(2, total)
    assert (devices.device, devices.num_devices) == (Device.CPU, 2)
    assert devices.memory_bytes_per_device == 4 * GIB
    assert local_inventory(2, 1000).memory_bytes_per_device == 0


@pytest.mark.parametrize(("limit", "expected"), [("max", 9 * GIB), (str(2 * GIB), 2 * GIB)])
def test_a_container_has_the_memory_of_its_limit(tmp_path: Path, limit: str, expected: int) -> None:
    assert machine_memory_bytes(machine(tmp_path, 9 * 2**20, limit)) == expected


def test_a_machine_that_does_not_say_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DevicesUnknown, match="no MemTotal"):
        machine_memory_bytes(tmp_path)
