"""The devices that a plan may use: from a manifest's node pool, or from this machine."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlhf_api.quantity import whole
from rlhf_api.spec.resources import Device, NodePool, PlacementSpec
from rlhf_flow.errors import DevicesUnknown

GIB = 2**30

GPU_MEMORY_BYTES: Mapping[str, int] = {
    name: gigabytes * 10**9
    for name, gigabytes in {
        "T4": 16,
        "V100-16G": 16,
        "V100-32G": 32,
        "A10": 24,
        "A10G": 24,
        "L4": 24,
        "RTX-4090": 24,
        "A100-40G": 40,
        "A40": 48,
        "L40S": 48,
        "RTX-A6000": 48,
        "A100-80G": 80,
        "H100": 80,
        "H100-80G": 80,
        "H200": 141,
        "B200": 180,
    }.items()
}
"""Memory by the GPU's model as data sheets state it, in decimal gigabytes; what a driver reports is
a few percent more, which is left for fragmentation."""

HOST_RESERVE_BYTES = GIB
"""Memory of the machine that ranks do not get: Ray's own processes and the driver, 0.85 GiB
measured."""


@dataclass(frozen=True)
class DeviceInventory:
    """One pool of equal devices."""

    pool: str
    """Its name."""
    device: Device
    """What ranks compute on."""
    nodes: int
    """Nodes."""
    devices_per_node: int
    """Devices on each."""
    memory_bytes_per_device: int
    """Memory of one device."""

    @property
    def num_devices(self) -> int:
        """Devices in the pool."""
        return self.nodes * self.devices_per_node


def inventory_from_pools(pools: tuple[NodePool, ...]) -> DeviceInventory:
    """The devices of a manifest's only node pool.

    Raises:
        DevicesUnknown: no pool, or one whose memory per device cannot be found out.
    """
    if not pools:
        raise DevicesUnknown(
            "no devices to plan for: got no resources.nodePools; add a pool, or plan for this "
            "machine with --devices"
        )
    (pool,) = pools
    return DeviceInventory(
        pool.name, pool.device, pool.nodes, pool.devices_per_node, _memory_of(pool)
    )


def limit_devices(devices: DeviceInventory, placement: PlacementSpec) -> DeviceInventory:
    """The devices that placement.maxDevices leaves: some of one node, or whole nodes."""
    limit = placement.max_devices
    if limit is None or limit >= devices.num_devices:
        return devices
    per_node = min(limit, devices.devices_per_node)
    return DeviceInventory(
        devices.pool,
        devices.device,
        limit // per_node,
        per_node,
        devices.memory_bytes_per_device,
    )


def local_inventory(num_devices: int, machine_bytes: int) -> DeviceInventory:
    """Ranks on the CPUs of one machine.

    Args:
        num_devices: ranks.
        machine_bytes: memory of the machine, as `machine_memory_bytes` reads it.
    """
    each = max(machine_bytes - HOST_RESERVE_BYTES, 0) // num_devices
    return DeviceInventory("local", Device.CPU, 1, num_devices, each)


def machine_memory_bytes(root: Path = Path("/")) -> int:
    """Memory that processes of this machine, or of this container, can have together.

    Args:
        root: of the file system; another one in tests.

    Raises:
        DevicesUnknown: the machine does not say.
    """
    meminfo = root / "proc/meminfo"
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", meminfo.read_text(), re.MULTILINE)
    except OSError:
        match = None
    if match is None:
        raise DevicesUnknown(
            f"the machine's memory is unknown: got no MemTotal in {meminfo}; give a pool with "
            "memoryPerDevice"
        )
    total = int(match.group(1)) * 1024
    limits = [
        root / "sys/fs/cgroup/memory.max",
        root / "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ]
    for limit in limits:
        if limit.is_file() and (text := limit.read_text().strip()).isdigit():
            total = min(total, int(text))
    return total


def _memory_of(pool: NodePool) -> int:
    if pool.memory_per_device is not None:
        return whole(pool.memory_per_device)
    where = f"resources.nodePools {pool.name}"
    if pool.device is Device.CPU:
        if pool.resources.memory is None:
            raise DevicesUnknown(
                f"the memory of a CPU device is unknown: got {where} without it; set "
                "memoryPerDevice, or resources.memory of its pods"
            )
        return whole(pool.resources.memory) // pool.devices_per_node
    if pool.gpu is None or pool.gpu not in GPU_MEMORY_BYTES:
        raise DevicesUnknown(
            f"the memory of a device is unknown: got gpu {pool.gpu or 'none'} in {where}, allowed "
            f"{', '.join(GPU_MEMORY_BYTES)}; name one of these or set memoryPerDevice"
        )
    return GPU_MEMORY_BYTES[pool.gpu]
