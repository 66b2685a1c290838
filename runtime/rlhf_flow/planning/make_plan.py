"""From a job to its graphs and plan: the one place of the planner that looks at the machine."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from pathlib import Path

from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.jobs.job_graphs import job_roles, policy_role, trace_job
from rlhf_flow.planning.inventory import (
    device_of,
    devices_asked_for,
    inventory_from_pools,
    local_inventory,
    machine_memory_bytes,
    split_machine,
)
from rlhf_flow.planning.local_gpus import gpu_inventory, gpu_memory_bytes, gpu_name
from rlhf_flow.planning.model_config import hub_cache
from rlhf_flow.planning.plan_job import plan_job
from rlhf_flow.planning.resolve_shape import resolve_shape
from rlhf_flow.planning.role_sets import role_sets, set_multiples
from rlhf_flow.planning.shapes import DecoderShape
from rlhf_flow.trace.graph import Graph


def make_plan(job: RLHFJob, pools: Sequence[Pool]) -> tuple[Mapping[GraphName, Graph], Plan]:
    """Trace a job and plan it.

    Raises:
        FlowError: an algorithm that cannot be traced.
        ManifestError: rewards that do not fit its roles, or engines that do not fit its models.
        PlanError: a job that cannot be planned on these devices.
    """
    graphs = trace_job(job, device_of(pools))
    return graphs, plan_job(job, graphs, pools, resolve_shapes(job, graphs))


def resolve_shapes(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> dict[str, DecoderShape]:
    """The shape of every role with a model, with this machine's hub cache.

    Raises:
        ShapeUnknown: a model that nothing here knows.
    """
    cache = hub_cache(os.environ, Path.home())
    with_model = (name for name, role in job_roles(graphs).items() if role.head is not None)
    return {name: resolve_shape(job, name, cache) for name in with_model}


def pools_of(job: RLHFJob, num_devices: int | None = None) -> tuple[Pool, ...]:
    """The devices that a job is planned for.

    Args:
        job: the manifest.
        num_devices: devices of this machine, instead of the manifest's pools. None: the pools, or
            this machine where there are none.

    Raises:
        DevicesUnknown: memory that cannot be found out.
    """
    pools = job.spec.resources.node_pools
    if num_devices is None and pools:
        return inventory_from_pools(pools)
    return local_pools(job, num_devices)


def local_pools(job: RLHFJob, num_devices: int | None = None) -> tuple[Pool, ...]:
    """This machine's GPUs, by default all; without any, ranks on its CPUs, by default one for each
    device that the job's placement needs. In the pools that the placement names.

    Raises:
        DevicesUnknown: more GPUs than there are, too few devices, or memory that cannot be found
            out.
        FlowError: an algorithm that cannot be traced, where its roles decide.
    """
    placement = job.spec.placement
    gpus = gpu_memory_bytes()
    if gpus:
        return split_machine(gpu_inventory(gpus, num_devices, gpu_name()), placement)
    count = num_devices or _devices_needed(job)
    return split_machine(local_inventory(count, machine_memory_bytes()), placement)


def _devices_needed(job: RLHFJob) -> int:
    """The fewest devices on which a job can be placed as it says; groups of roles that do not say
    how many they have count for one.

    Raises:
        FlowError: an algorithm that cannot be traced.
        InvalidPlacement: a placement that has nothing to place apart.
    """
    kind = job.spec.placement.type
    if kind is PlacementType.MANUAL:
        return devices_asked_for(job.spec.placement)
    if kind not in (PlacementType.SPLIT, PlacementType.STANDALONE):
        return lcm(*_copies(job, job.spec.models).values())
    graphs = trace_job(job, Device.CPU)
    roles = job_roles(graphs).items()
    heads = {name: role.head for name, role in roles if role.head is not None}
    sets = role_sets(kind, heads, policy_role(graphs[GraphName.STEP]))
    return sum(set_multiples(sets, _copies(job, heads), job.spec.rollout.parallelism.tensor))


def _copies(job: RLHFJob, roles: Iterable[str]) -> dict[str, int]:
    """Devices that hold each role's model once."""
    return {role: job.spec.model_for(role).training.parallelism.num_ranks for role in roles}


def local_device() -> Device:
    """What this machine's ranks compute on: its GPUs, or CPUs where it has none."""
    return Device.GPU if gpu_memory_bytes() else Device.CPU
