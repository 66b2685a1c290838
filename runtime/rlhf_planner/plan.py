"""The planner's entry points, for the command and the operator.

`plan_problem` plans a problem: on GPUs of known speed the best plan that a search finds for the
objective, else the first feasible one. `plan_job` plans a job's graphs on its devices, or says why
there is no plan and what would help. `make_plan` also traces the job; it and its neighbours are the
only functions of the planner that inspect this machine.
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
from rlhf_planner.placement.role_sets import role_sets, set_multiples
from rlhf_planner.placement.validation import check_served
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.devices import (
    device_of,
    gpu_inventory,
    gpu_memory_bytes,
    gpu_name,
    inventory_from_pools,
    local_inventory,
    min_devices_of_groups,
    split_machine,
)
from rlhf_planner.problem.from_manifest import problem_of
from rlhf_planner.problem.model_shapes import check_contexts, resolve_shape
from rlhf_planner.problem.problem import Graphs, PlanningProblem
from rlhf_planner.problem.profile import Profile
from rlhf_planner.search.branch_and_bound import MAX_CANDIDATES
from rlhf_planner.search.pool_search import plan_on_best_size
from rlhf_planner.search.search import plan_of_search, run_search
from rlhf_planner.stage_fusion.choice import apply_requested_fusion
from rlhf_sizing.config import hub_cache
from rlhf_sizing.machine import machine_memory_bytes
from rlhf_sizing.shape import DecoderShape


def plan_problem(problem: PlanningProblem, max_candidates: int = MAX_CANDIDATES) -> Plan:
    """Plan a problem.

    Args:
        problem: the planning problem.
        max_candidates: limit of strategies that a search checks against memory.

    Raises:
        DevicesUnknown: several pools, one of unknown speed, and a placement that the planner
            chooses.
        InvalidPlacement: groups that do not match the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles that
            generate on the same GPUs or on some of a pool's devices, weights that would be copied
            between devices or engines, a model that no engine serves, or a stage fusion without any
            possible overlap.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a fixed cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
        TimesUnknown: an objective that compares times, on devices of unknown speed.
        StepTooLong: no number of devices reaches the required step time.
    """
    # These objectives mean nothing without times, so the error comes before any fallback.
    objective = problem.fixed.placement.objective
    if objective.may_use_fewer_devices:
        require_times(objective, problem.pools)
    try:
        require_comparable(problem.pools)
    except DevicesUnknown as error:
        # Without times nothing can be compared: the first feasible choice is used.
        _refuse_pools_of_unknown_speed(problem, error)
        return with_estimate(
            problem, apply_requested_fusion(problem, build_plan(first_feasible(problem)))
        )
    check_served(problem)
    hardware = hardware_of_pools(problem.pools, problem.profile)
    plan = (
        plan_on_best_size(problem, hardware, max_candidates)
        if objective.may_use_fewer_devices
        else None
    )
    # If no size has a plan, the search on all devices gives the reason.
    return plan or _fastest_plan(problem, hardware, max_candidates)


def _refuse_pools_of_unknown_speed(problem: PlanningProblem, error: DevicesUnknown) -> None:
    """Raise if the planner would have to choose among several pools without knowing times."""
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
        # Raises DoesNotFit with the sum of the choice that needs the least memory.
        first_feasible(problem)
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
    """Plan a job.

    Args:
        job: the manifest.
        graphs: traced from it.
        devices: its pools, all of one kind; placement.maxDevices may leave fewer.
        shapes: of every role with a model.
        max_candidates: limit of strategies that a search checks against memory.
        profile: measured on such devices, if there is one.

    Raises:
        PlanError, ManifestError: as `plan_problem`, or as `check_contexts`; if a job does not fit,
            the message also says what would.
    """
    # The check needs no devices, so a wrong context is reported before a search.
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
        ManifestError: rewards that do not match its roles, or engines that do not match its models.
        PlanError: a job that cannot be planned on these devices.
    """
    graphs = trace_job(job, device_of(pools))
    return graphs, plan_job(job, graphs, pools, resolve_shapes(job, graphs))


def resolve_shapes(job: RLHFJob, graphs: Mapping[GraphName, Graph]) -> dict[str, DecoderShape]:
    """The shape of every role with a model, with this machine's hub cache.

    Raises:
        ShapeUnknown: an unknown model.
    """
    cache = hub_cache(os.environ, Path.home())
    with_model = (name for name, role in job_roles(graphs).items() if role.head is not None)
    return {name: resolve_shape(job, name, cache) for name in with_model}


def pools_of(job: RLHFJob, num_devices: int | None = None) -> tuple[Pool, ...]:
    """The devices that a job is planned for.

    Args:
        job: the manifest.
        num_devices: devices of this machine, instead of the manifest's pools. None: the pools, or
            this machine if there are none.

    Raises:
        DevicesUnknown: unknown memory.
    """
    pools = job.spec.resources.node_pools
    if num_devices is None and pools:
        return inventory_from_pools(pools)
    return local_pools(job, num_devices)


def local_pools(job: RLHFJob, num_devices: int | None = None) -> tuple[Pool, ...]:
    """This machine's GPUs, by default all, or ranks on its CPUs if it has none.

    By default there are as many ranks on CPUs as the job's placement needs. Devices are split into
    the pools that the placement names.

    Raises:
        DevicesUnknown: fewer GPUs than requested, too few devices, or unknown memory.
        FlowError: an algorithm that cannot be traced, if its roles decide.
    """
    placement = job.spec.placement
    gpus = gpu_memory_bytes()
    if gpus:
        return split_machine(gpu_inventory(gpus, num_devices, gpu_name()), placement)
    count = num_devices or _devices_needed(job)
    return split_machine(local_inventory(count, machine_memory_bytes()), placement)


def _devices_needed(job: RLHFJob) -> int:
    """The minimum number of devices on which a job can be placed.

    Raises:
        FlowError: an algorithm that cannot be traced.
        InvalidPlacement: a placement that has nothing to separate.
    """
    # Groups without a number count for one device.
    kind = job.spec.placement.type
    if kind is PlacementType.MANUAL:
        return min_devices_of_groups(job.spec.placement)
    # On shared devices the copies of each role's model must fill all of them.
    if kind not in (PlacementType.SPLIT, PlacementType.STANDALONE):
        return lcm(*_copies(job, job.spec.models).values())
    graphs = trace_job(job, Device.CPU)
    roles = job_roles(graphs).items()
    heads = {name: role.head for name, role in roles if role.head is not None}
    sets = role_sets(kind, heads, policy_role(graphs[GraphName.STEP]))
    return sum(set_multiples(sets, _copies(job, heads), job.spec.rollout.parallelism.tensor))


def _copies(job: RLHFJob, roles: Iterable[str]) -> dict[str, int]:
    """Devices for one copy of each role's model."""
    return {role: job.spec.model_for(role).training.parallelism.num_ranks for role in roles}


def local_device() -> Device:
    """Device of this machine's ranks: its GPUs, or CPUs if it has none."""
    return Device.GPU if gpu_memory_bytes() else Device.CPU
