"""Pools of devices, for tests of what is planned for them."""

from __future__ import annotations

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device


def pool_of(
    name: str, device: Device, nodes: int, devices_per_node: int, memory_bytes: int
) -> Pool:
    """So many nodes of so many devices with so much memory each."""
    return Pool(
        name=name,
        device=device,
        nodes=nodes,
        devices_per_node=devices_per_node,
        memory_bytes_per_device=memory_bytes,
    )
