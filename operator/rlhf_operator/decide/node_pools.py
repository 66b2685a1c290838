"""The node pools that a job's cluster takes."""

from __future__ import annotations

from rlhf_api.plan import Pool
from rlhf_api.plan_estimate import PoolPart
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import NodePool
from rlhf_api.status import PlanStatus
from rlhf_planner.problem.devices import limit_devices


def cluster_job(job: RLHFJob, plan: PlanStatus | None) -> RLHFJob:
    """A job as its cluster runs it: with the node pools that are left where its objective lets the
    plan take a part of them. Its driver plans for these, so that it never waits for others.

    Args:
        job: with the chart's defaults.
        plan: of the job. None: not made yet, or only the driver can make it.
    """
    spec = job.spec
    if plan is None or not plan.pools or not spec.placement.objective.may_use_fewer_devices:
        return job
    parts = {part.name: part for part in plan.pools}
    pools = (
        _part_of(pool, parts[pool.name]) for pool in spec.resources.node_pools if pool.name in parts
    )
    taken = tuple(pools)
    if not taken:  # the plan is of an earlier manifest, whose pools had other names
        return job
    resources = spec.resources.model_copy(update={"node_pools": taken})
    placement = spec.placement.model_copy(update={"max_devices": None})  # the plan kept it
    changed = spec.model_copy(update={"resources": resources, "placement": placement})
    return job.model_copy(update={"spec": changed})


def _part_of(pool: NodePool, part: PoolPart) -> NodePool:
    size = {"nodes": part.nodes, "devices_per_node": part.devices_per_node}
    return pool.model_copy(update=size)


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
