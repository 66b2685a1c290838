"""The node pools that a job's cluster takes."""

from __future__ import annotations

from rlhf_api.plan import Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import NodePool
from rlhf_flow.planning.inventory import limit_devices


def taken_pools(job: RLHFJob) -> tuple[NodePool, ...]:
    """Its pools, each with as many nodes and devices as placement.maxDevices leaves."""
    taken = []
    for pool in job.spec.resources.node_pools:
        whole = Pool(
            name=pool.name,
            device=pool.device,
            nodes=pool.nodes,
            devices_per_node=pool.devices_per_node,
            memory_bytes_per_device=0,
        )
        left = limit_devices(whole, job.spec.placement)
        size = {"nodes": left.nodes, "devices_per_node": left.devices_per_node}
        taken.append(pool.model_copy(update=size))
    return tuple(taken)
