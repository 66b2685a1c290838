"""Make the plans of jobs in a few processes beside the reconciler, each plan once."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from typing import Any

from rlhf_api.errors import RlhfError
from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import PoolPart
from rlhf_api.spec.algorithm import AlgorithmType
from rlhf_api.spec.checkpoint import CheckpointSpec
from rlhf_api.spec.failure import FailurePolicy
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_api.status import PlanStatus
from rlhf_flow.document.manifest_graph import matches_settings
from rlhf_flow.errors import DevicesUnknown, ShapeUnknown
from rlhf_flow.jobs.job_graphs import graphs_without_code
from rlhf_operator.decide.observed import PlanResult, Refusal
from rlhf_planner.plan import plan_job, resolve_shapes
from rlhf_planner.problem.devices import device_of, inventory_from_pools

MAX_PLANS = 1024
"""Plans in memory; the least recently used are dropped and made again."""
IGNORED_FIELDS: dict[str, Any] = {
    **dict.fromkeys(("suspend", "managed_by", "telemetry", "image"), True),
    "failure_policy": {*FailurePolicy.model_fields} - {"standby"},
    "checkpoint": {*CheckpointSpec.model_fields} - {"every_steps"},
    "resources": {
        **dict.fromkeys(("pod", "head_pod", "head"), True),
        "node_pools": {"__all__": {"pod", "device_resource"}},
    },
}
"""Fields of a spec that no plan depends on, in the form of pydantic's `exclude`."""


def spawn(processes: int) -> Executor:
    """Return a pool of processes that end with this one, however it ends."""
    # Forked processes would inherit locks in the state in which this one's threads hold them.
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=begin_planning)


def begin_planning() -> None:
    """Prepare a planner's process: it ends with its parent, and leaves the CPUs to it."""
    os.nice(10)  # a plan takes seconds; the operator must answer and renew its Lease meanwhile
    end_with_parent()


def end_with_parent() -> None:
    """End this process when its parent has ended. Runs in a planner's process."""
    # A parent that is killed cannot tell its children, which would wait for work for ever.
    parent = multiprocessing.parent_process()
    assert parent is not None, "only a process of the planner has a parent to watch"
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Planner:
    """Caches plans by the fields that they depend on. Its methods may be called from any thread."""

    def __init__(self, processes: int, start: Callable[[int], Executor] = spawn) -> None:
        """`start` creates the pool of processes, again after one of them has died."""
        self._start = partial(start, processes)
        self._executor = self._start()
        self._plans: OrderedDict[str, Future[PlanResult]] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, job: RLHFJob, on_planned: Callable[[], None]) -> PlanResult | None:
        """Return the plan of a job if it is made; else have it made.

        Args:
            job: with defaults.
            on_planned: called once when a plan that is not ready yet has been made.

        Returns:
            None: it is being made.
        """
        unknown = find_unknown(job)
        if unknown:
            return PlanResult(unknown=unknown)
        # Equal jobs share a future, so that a plan is made once, whoever asks.
        with self._lock:
            future = self._future(job)
        if not future.done():
            future.add_done_callback(lambda _: on_planned())
            return None
        error = future.exception()
        if error is not None:
            # Its process died. Other jobs with this plan must be able to try again.
            self._forget(job)
            return PlanResult(unknown=f"the planner failed ({error}); the driver plans")
        return future.result()

    def close(self) -> None:
        """Wait for plans in progress, and end the processes."""
        # Python's own cleanup at exit fails if nobody has waited for them.
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _future(self, job: RLHFJob) -> Future[PlanResult]:
        key = plan_key(job)
        if key not in self._plans:
            self._plans[key] = self._submit(job)
            if len(self._plans) > MAX_PLANS:
                self._plans.popitem(last=False)
        # Least recently used first.
        self._plans.move_to_end(key)
        return self._plans[key]

    def _submit(self, job: RLHFJob) -> Future[PlanResult]:
        try:
            return self._executor.submit(make_plan_result, job)
        except BrokenExecutor:  # one of its processes has died: it accepts no more work
            self._executor.shutdown(wait=False)
            self._executor = self._start()
            return self._executor.submit(make_plan_result, job)

    def _forget(self, job: RLHFJob) -> None:
        with self._lock:
            self._plans.pop(plan_key(job), None)


def plan_key(job: RLHFJob) -> str:
    """Return a digest of all fields that a plan may depend on."""
    text = job.spec.model_dump_json(exclude=IGNORED_FIELDS)
    return hashlib.sha256(text.encode()).hexdigest()


def find_unknown(job: RLHFJob) -> str:
    """Return why a job cannot be planned here, or an empty string.

    The operator runs no user's code and reads no model's files.
    """
    algorithm = job.spec.algorithm
    if algorithm.type is AlgorithmType.CUSTOM and algorithm.graph is None:
        return (
            "the algorithm is the user's own code, which only the driver runs: it plans first "
            "(`rlhf fill FILE` writes what the operator needs into the manifest)"
        )
    if algorithm.type is AlgorithmType.CUSTOM and not matches_settings(job):
        return (
            "spec.algorithm.graph was traced with another entry point, other parameters, data, "
            "rewards or samples than the manifest has now: the driver plans first "
            "(`rlhf fill FILE` brings it up to date)"
        )
    for entry in job.spec.manifest_models.values():
        if entry.model.source.path is not None and entry.model.shape is None:
            return (
                f"the shape of {entry.field} is in its files, which only the driver reads: it "
                f"plans first (`rlhf fill FILE` writes it into the manifest, as "
                f"spec.{entry.field}.shape)"
            )
    return ""


def make_plan_result(job: RLHFJob) -> PlanResult:
    """Plan a job without its own code. Runs in a planner's process."""
    try:
        pools = inventory_from_pools(job.spec.resources.node_pools)
        graphs = graphs_without_code(job, device_of(pools))
        plan = plan_job(job, graphs, pools, resolve_shapes(job, graphs))
    except (ShapeUnknown, DevicesUnknown) as error:
        return PlanResult(unknown=f"{error}; the driver plans first")
    except RlhfError as error:
        return PlanResult(refusal=Refusal(error.reason, str(error)))
    return PlanResult(plan=plan_status(plan, job.spec.placement.type))


def plan_status(plan: Plan, requested: PlacementType) -> PlanStatus:
    """Return a plan's summary for the status.

    Args:
        plan: of a job.
        requested: the manifest's placement.
    """
    memory = plan.fullest
    # Estimates for CPUs are right only to an order of magnitude.
    estimate = plan.estimate if plan.device is Device.GPU else None
    return PlanStatus(
        placement=_placement(plan, requested),
        pools=tuple(
            PoolPart(name=pool.name, nodes=pool.nodes, devices_per_node=pool.devices_per_node)
            for pool in plan.pools
        ),
        step_seconds=f"{estimate.step_seconds:.4g}" if estimate else None,
        tokens_per_second=round(estimate.tokens_per_second) if estimate else None,
        hardware=", ".join(dict.fromkeys(estimate.hardware.values()))[:1024] if estimate else None,
        peak_memory_bytes=memory.peak_bytes,
        summary=_summary(plan),
    )


def _placement(plan: Plan, requested: PlacementType) -> PlacementType:
    """Return the requested placement; for Auto, Colocated if all roles are on the same devices."""
    meshes = {(role.mesh.pool, role.mesh.ranks) for role in plan.roles if role.mesh}
    meshes |= {(engine.mesh.pool, engine.mesh.ranks) for engine in plan.generations}
    is_auto = requested is PlacementType.AUTO
    return PlacementType.COLOCATED if is_auto and len(meshes) == 1 else requested


def _summary(plan: Plan) -> str:
    pools = [
        f"{pool.nodes} x {pool.devices_per_node} {pool.device.value} of pool {pool.name}: "
        f"{', '.join(plan.roles_in(pool.name))}"
        for pool in plan.pools
    ]
    engines = [
        f"{engine.mesh.data} generation engines of {engine.mesh.tensor} for {engine.role}"
        for engine in plan.generations
    ]
    memory = plan.fullest
    peak, capacity = memory.peak_bytes / 2**30, memory.capacity_bytes / 2**30
    usage = f"{peak:.1f} of {capacity:.1f} GiB at most, in {memory.peak_phase}"
    return "; ".join([*pools, *engines, usage])
