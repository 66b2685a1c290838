"""The groups of workers that a job's cluster has."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.job import RLHFJob
from rlhf_api.resources import NodePool
from rlhf_flow.planning.inventory import DeviceInventory, limit_devices


@dataclass(frozen=True)
class WorkerGroup:
    """Equal pods, one for each node."""

    pool: NodePool
    nodes: int
    devices_per_node: int


def worker_groups(job: RLHFJob) -> tuple[WorkerGroup, ...]:
    """A group for each node pool, with as many devices as placement.maxDevices leaves."""
    groups = []
    for pool in job.spec.resources.node_pools:
        whole = DeviceInventory(pool.name, pool.device, pool.nodes, pool.devices_per_node, 0)
        taken = limit_devices(whole, job.spec.placement)
        groups.append(WorkerGroup(pool, taken.nodes, taken.devices_per_node))
    return tuple(groups)
