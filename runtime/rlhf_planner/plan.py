"""From what is planned to its plan: on GPUs whose speed is known the best that is found by the
objective, else the first way to compute that fits.

From a job's graphs and devices to its plan, or to why there is none and what would help.

From a job to its graphs and plan: the one place of the planner that looks at the machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from math import lcm
from pathlib import Path

from rlhf_api.plan import GraphName, Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown, DoesNotFit
from rlhf_flow.jobs.job_graphs import job_roles, policy_role, trace_job
from rlhf_flow.trace.graph import Graph
from rlhf_planner.advice.advice import advice_lines
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.cost.pool_hardware import require_comparable, require_times
from rlhf_planner.evaluate import hardware_of_pools, with_estimate
from rlhf_planner.feasibility import first_feasible
from rlhf_planner.overlap.choice import fused_as_told
from rlhf_planner.placement.role_sets import role_sets, set_multiples
from rlhf_planner.placement.validation import check_served
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.devices import (
    device_of,
    devices_asked_for,
    gpu_inventory,
    gpu_memory_bytes,
    gpu_name,
    inventory_from_pools,
    local_inventory,
    split_machine,
)
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.model_shapes import check_contexts, resolve_shape
from rlhf_planner.problem.problem import Graphs, PlanningProblem
from rlhf_planner.problem.profile import Profile
from rlhf_planner.search.branch_and_bound import MAX_CANDIDATES
from rlhf_planner.search.pool_search import plan_on_best_size
from rlhf_planner.search.search import plan_of_search, run_search
from rlhf_sizing.config import hub_cache
from rlhf_sizing.machine import machine_memory_bytes
from rlhf_sizing.shape import DecoderShape


def plan_problem(problem: PlanningProblem, max_candidates: int = MAX_CANDIDATES) -> Plan:
    """The plan of a job.

    Args:
        problem: what is planned.
        max_candidates: ways to compute that a search fits into memory, at most.

    Raises:
        DevicesUnknown: several pools, of which one's speed is not known, and a placement that is
            left to the planner.
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, weights that would be
            copied between devices or engines, a model that no engine serves, or a stage fusion
            where nothing can overlap.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
        TimesUnknown: an objective that compares times, on devices whose times are not known.
        StepTooLong: no number of devices on which a step takes as little as is asked for.
    """
    objective = problem.fixed.placement.objective
    if objective.may_use_fewer_devices:
        require_times(objective, problem.pools)
    try:
        require_comparable(problem.pools)
    except DevicesUnknown as error:
        _refuse_to_share_out(problem, error)
        return with_estimate(problem, fused_as_told(problem, build_plan(first_feasible(problem))))
    check_served(problem)
    hardware = hardware_of_pools(problem.pools, problem.profile)
    plan = (
        plan_on_best_size(problem, hardware, max_candidates)
        if objective.may_use_fewer_devices
        else None
    )
    return plan or _fastest_plan(problem, hardware, max_candidates)


def _refuse_to_share_out(problem: PlanningProblem, error: DevicesUnknown) -> None:
    """Raise where the planner would have to choose among several pools without knowing times."""
    if len(problem.pools) > 1 and problem.fixed.placement.type is PlacementType.AUTO:
        raise DevicesUnknown(
            f"no role can be given to one of several pools by the time that it takes: {error}; "
            "or write placement.type: Manual with the roles of each pool"
        ) from error


def _fastest_plan(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], max_candidates: int
) -> Plan:
    search = run_search(problem, hardware, max_candidates)
    if search.result.fitted is None:
        first_feasible(problem)  # which says why not
        raise DoesNotFit("nothing that was tried fits")
    return plan_of_search(search)


def plan_job(
    job: RLHFJob,
    graphs: Graphs,
    devices: Sequence[Pool],
    shapes: Mapping[str, DecoderShape],
    max_candidates: int = MAX_CANDIDATES,
    profile: Profile | None = None,
) -> Plan:
    """The plan of a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may take fewer.
        shapes: of every role with a model.
        max_candidates: ways to compute that a search fits into memory, at most.
        profile: measured on such devices, if there is one.

    Raises:
        PlanError, ManifestError: as `plan_problem` does, or as `check_contexts`; where a job does
            not fit, the message also says what would fit.
    """
    check_contexts(job, graphs)
    try:
        return plan_problem(problem_of(job, graphs, devices, shapes, profile), max_candidates)
    except DoesNotFit as error:
        lines = [str(error), *advice_lines(job, graphs, devices, shapes)]
        raise DoesNotFit("\n".join(lines)) from error


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
