"""Plans of jobs, made beside the reconciler: in a few processes, each plan once."""

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
from rlhf_operator.decide.observed import PlanSeen, Refusal
from rlhf_planner.plan import plan_job, resolve_shapes
from rlhf_planner.problem.devices import device_of, inventory_from_pools

KEPT = 1024
"""Plans that are remembered; the ones used longest ago are made again."""
NOT_PLANNED: dict[str, Any] = {
    **dict.fromkeys(("suspend", "managed_by", "telemetry", "image"), True),
    "failure_policy": {*FailurePolicy.model_fields} - {"standby"},
    "checkpoint": {*CheckpointSpec.model_fields} - {"every_steps"},
}
"""Parts of a spec that no plan depends on, by fields."""


def spawn(processes: int) -> Executor:
    """Processes that share nothing with this one, whatever its threads are doing, and end with it
    however it ends."""
    context = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent)


def end_with_parent() -> None:
    """Watch who started this process: one that is killed tells nobody, and work would be awaited
    for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None, "this is for processes that were started to plan"
    threading.Thread(target=_end_after, args=(parent.sentinel,), daemon=True).start()


def _end_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)


class Planner:
    """Plans by what they depend on. May be asked from several threads."""

    def __init__(self, processes: int, start: Callable[[int], Executor] = spawn) -> None:
        """`start` makes so many processes; it is called again when one of them has died."""
        self._start = partial(start, processes)
        self._executor = self._start()
        self._plans: OrderedDict[str, Future[PlanSeen]] = OrderedDict()
        self._lock = threading.Lock()

    def plan(self, job: RLHFJob, then: Callable[[], None]) -> PlanSeen | None:
        """The plan of a job.

        Args:
            job: with defaults.
            then: called once when a plan that is not there yet has been made.

        Returns:
            What came of it; None: it is being made.
        """
        unknown = why_unknown(job)
        if unknown:
            return PlanSeen(unknown=unknown)
        with self._lock:
            future = self._future(job)
        if not future.done():
            future.add_done_callback(lambda _: then())
            return None
        error = future.exception()
        if error is not None:  # a planner that died; it must not stop every job of its kind
            self._forget(job)
            return PlanSeen(unknown=f"the planner failed ({error}); the driver plans")
        return future.result()

    def close(self) -> None:
        """End its processes, when the plans that they are at are made: Python's own end fails where
        nobody has waited for them."""
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _future(self, job: RLHFJob) -> Future[PlanSeen]:
        key = key_of(job)
        if key not in self._plans:
            self._plans[key] = self._submit(job)
            if len(self._plans) > KEPT:
                self._plans.popitem(last=False)
        self._plans.move_to_end(key)
        return self._plans[key]

    def _submit(self, job: RLHFJob) -> Future[PlanSeen]:
        try:
            return self._executor.submit(plan_of, job)
        except BrokenExecutor:  # it takes nothing any more once one of its processes has died
            self._executor.shutdown(wait=False)
            self._executor = self._start()
            return self._executor.submit(plan_of, job)

    def _forget(self, job: RLHFJob) -> None:
        with self._lock:
            self._plans.pop(key_of(job), None)


def key_of(job: RLHFJob) -> str:
    """What names a job's plan: a digest of all that a plan may depend on."""
    text = job.spec.model_dump_json(exclude=NOT_PLANNED)
    return hashlib.sha256(text.encode()).hexdigest()


def why_unknown(job: RLHFJob) -> str:
    """Why a job cannot be planned here: the operator runs no user's code and opens no model."""
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
    for given in job.spec.manifest_models.values():
        if given.model.source.path is not None and given.model.shape is None:
            return (
                f"the shape of {given.field} is in its files, which only the driver reads: it "
                f"plans first (`rlhf fill FILE` writes it into the manifest, as "
                f"spec.{given.field}.shape)"
            )
    return ""


def plan_of(job: RLHFJob) -> PlanSeen:
    """Plan a job, of its own code nothing but what the manifest says: what a planner's process
    does."""
    try:
        pools = inventory_from_pools(job.spec.resources.node_pools)
        graphs = graphs_without_code(job, device_of(pools))
        plan = plan_job(job, graphs, pools, resolve_shapes(job, graphs))
    except (ShapeUnknown, DevicesUnknown) as error:
        return PlanSeen(unknown=f"{error}; the driver plans first")
    except RlhfError as error:
        return PlanSeen(refusal=Refusal(error.reason, str(error)))
    return PlanSeen(plan=status_of(plan, job.spec.placement.type))


def status_of(plan: Plan, asked: PlacementType) -> PlanStatus:
    """A plan in short.

    Args:
        plan: of a job.
        asked: the manifest's placement.
    """
    memory = plan.fullest
    # Of processes on CPUs times are no more than orders of magnitude.
    estimate = plan.estimate if plan.device is Device.GPU else None
    return PlanStatus(
        placement=_placement(plan, asked),
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


def _placement(plan: Plan, asked: PlacementType) -> PlacementType:
    """What was asked for; where the planner chose, Colocated if all roles are on the same
    devices."""
    where = {(role.mesh.pool, role.mesh.ranks) for role in plan.roles if role.mesh}
    where |= {(engine.mesh.pool, engine.mesh.ranks) for engine in plan.generations}
    is_chosen = asked is PlacementType.AUTO
    return PlacementType.COLOCATED if is_chosen and len(where) == 1 else asked


def _summary(plan: Plan) -> str:
    pools = [
        f"{pool.nodes} x {pool.devices_per_node} {pool.device.value} of pool {pool.name}: "
        f"{', '.join(plan.roles_in(pool.name))}"
        for pool in plan.pools
    ]
    engines = [
        f"{each.mesh.data} generation engines of {each.mesh.tensor} for {each.role}"
        for each in plan.generations
    ]
    memory = plan.fullest
    peak, capacity = memory.peak_bytes / 2**30, memory.capacity_bytes / 2**30
    most = f"{peak:.1f} of {capacity:.1f} GiB at most, in {memory.peak_phase}"
    return "; ".join([*pools, *engines, most])
