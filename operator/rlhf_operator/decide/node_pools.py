"""The node pools that a job's cluster uses."""

from __future__ import annotations

from rlhf_api.plan import Pool
from rlhf_api.plan_estimate import PoolPart
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import NodePool
from rlhf_api.status import PlanStatus
from rlhf_planner.problem.devices import limit_devices


def cluster_job(job: RLHFJob, plan: PlanStatus | None) -> RLHFJob:
    """Return the job as its cluster runs it.

    If the objective lets the plan use a part of the node pools, the result has just that part.
    The driver plans for these pools, so it never waits for others.

    Args:
        job: with the chart's defaults.
        plan: of the job. None: not made yet, or only the driver can make it.
    """
    spec = job.spec
    if plan is None or not plan.pools or not spec.placement.objective.may_use_fewer_devices:
        return job
    parts = {part.name: part for part in plan.pools}
    used = tuple(
        _resize(pool, parts[pool.name]) for pool in spec.resources.node_pools if pool.name in parts
    )
    if not used:  # the plan is of an earlier manifest, whose pools had other names
        return job
    resources = spec.resources.model_copy(update={"node_pools": used})
    # The plan has respected maxDevices; the smaller pools must not be limited again.
    placement = spec.placement.model_copy(update={"max_devices": None})
    changed = spec.model_copy(update={"resources": resources, "placement": placement})
    return job.model_copy(update={"spec": changed})


def _resize(pool: NodePool, part: PoolPart) -> NodePool:
    size = {"nodes": part.nodes, "devices_per_node": part.devices_per_node}
    return pool.model_copy(update=size)


def cluster_pools(job: RLHFJob) -> tuple[NodePool, ...]:
    """Return the job's pools with the nodes and devices that placement.maxDevices allows."""
    pools = []
    for pool in job.spec.resources.node_pools:
        full = Pool(
            name=pool.name,
            device=pool.device,
            nodes=pool.nodes,
            devices_per_node=pool.devices_per_node,
            memory_bytes_per_device=0,
        )
        limited = limit_devices(full, job.spec.placement)
        size = {"nodes": limited.nodes, "devices_per_node": limited.devices_per_node}
        pools.append(pool.model_copy(update=size))
    return tuple(pools)


def num_pods(job: RLHFJob) -> int:
    """Return the number of pods of a job's cluster: the head and its workers."""
    return 1 + sum(pool.nodes for pool in cluster_pools(job))
