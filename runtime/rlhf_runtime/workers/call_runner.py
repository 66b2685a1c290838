"""Runs the calls of a rank: checks a request, finds the method, reports the result or the error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName
from rlhf_api.spec.resources import Device
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.out_of_memory import is_out_of_memory, out_of_memory_text
from rlhf_runtime.calls.reports import CallReport, EpisodeReport, Statistics
from rlhf_runtime.calls.requests import CallRequest, returned_columns
from rlhf_runtime.dataplane.call_protocols import protocol_of
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard
from rlhf_runtime.errors import OutOfMemory, UnknownCall, WorkerLost
from rlhf_runtime.faults import FaultPhase, Faults
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.workers.process import resident_bytes
from rlhf_runtime.workers.setup import RankSetup

if TYPE_CHECKING:  # torch is imported when a rank prepares
    from rlhf_runtime.engines.parallel import ParallelContext
    from rlhf_runtime.engines.training import TrainingEngine
    from rlhf_runtime.roles.context import RankRole, Result
    from rlhf_runtime.roles.custom_operation import OperationState

# A report, rows, and unfinished rows.
Answer = bytes | tuple[bytes, Shard] | tuple[bytes, Shard, Shard]
# Methods in which faults can be injected.
FAULTY_METHODS = {"generate": FaultPhase.GENERATE, "train": FaultPhase.TRAIN}


class CallRunner:
    """Runs one call at a time. The rank fills roles and contexts when it builds them."""

    def __init__(
        self,
        setup: RankSetup,
        roles: Mapping[str, RankRole],
        operations: OperationState,
        contexts: Mapping[Mesh, ParallelContext],
        faults: Faults,
    ) -> None:
        self._setup = setup
        self._roles = roles
        self._operations = operations
        self._contexts = contexts
        self._faults = faults

    def require_current(self, request: CallRequest) -> None:
        """Reject a request for another incarnation.

        Raises:
            WorkerLost: the request is late.
        """
        if request.incarnation != self._setup.incarnation:
            raise WorkerLost(
                f"{request.call.id} is for incarnation {request.incarnation}, this rank belongs to "
                f"{self._setup.incarnation}: the message is late; it was not run"
            )

    def run(self, request: CallRequest, shards: Sequence[Shard]) -> Answer:
        """Run a call.

        Returns:
            A report; with a shard on ranks whose output counts; with another shard if the call
            leaves rows unfinished.

        Raises:
            UnknownCall: the plan does not have the call.
            OutOfMemory: memory is exhausted.
        """
        start = time.time()
        planned = self._planned(request)
        assert planned.mesh is not None
        at = Coordinates.in_call(self._setup.rank, planned.mesh, planned.source_mesh)
        inputs = CallInputs(request, shards, at)
        try:
            if request.graph is GraphName.STEP and request.call.method in FAULTY_METHODS:
                self._faults.enter(FAULTY_METHODS[request.call.method], request.step)
            result = self._method(request, planned.mesh)(inputs)
        except Exception as error:
            if is_out_of_memory(error):
                raise self._out_of_memory(request, error) from error
            raise
        start = start if result.began is None else result.began
        # Other ranks have the same rows and statistics, or none.
        counts = protocol_of(request.call).collect(at)
        statistics = result.statistics if counts else Statistics()
        episodes = result.episodes if counts else None
        report = self._report(request, statistics, start, episodes).to_bytes()
        names = returned_columns(request.call)
        if not names or not counts:
            return report
        assert result.index is not None, "a call with columns returns the index of their rows"
        finished = Shard(result.index, {name: result.columns[name] for name in names})
        if result.unfinished is None:
            return report, finished
        columns = {name: result.unfinished.columns[name] for name in names}
        return report, finished, Shard(result.unfinished.index, columns)

    def _planned(self, request: CallRequest) -> CallPlan:
        planned = self._setup.plan.call(request.graph, request.call.id)
        if planned is None or planned.mesh is None:
            raise UnknownCall(
                f"the plan has no call {request.call.id} in {request.graph.value}: the step made "
                "another call than its trace; a step must make the same calls every time"
            )
        return planned

    def _method(self, request: CallRequest, mesh: Mesh) -> Callable[[CallInputs], Result]:
        call = request.call
        if call.role is None:
            from rlhf_runtime.roles.operations import compute

            parallel = self._contexts[mesh]
            return lambda inputs: compute(inputs, parallel, self._operations)
        if source := call.copied_role:
            return self._copy_weights(source, call.role)
        return self._roles[call.role].methods[call.method]

    def _copy_weights(self, source: str, target: str) -> Callable[[CallInputs], Result]:
        from rlhf_runtime.roles.context import Result

        def copy(_: CallInputs) -> Result:
            engines = model_engines(self._roles)
            engines[target].copy_weights_from(engines[source], entirely=True)
            return Result()

        return copy

    def _report(
        self,
        request: CallRequest,
        statistics: Statistics,
        start: float,
        episodes: EpisodeReport | None,
    ) -> CallReport:
        call, process = request.call, f"rank {self._setup.global_rank}"
        span = Span(process, call.role or "", call.method, start, time.time())
        memory = resident_bytes()
        return CallReport(call.id, statistics, (span,), memory, episodes=episodes)

    def _out_of_memory(self, request: CallRequest, error: Exception) -> OutOfMemory:
        import torch

        setup, call = self._setup, request.call
        # On a GPU the device's memory is exhausted, else the process's.
        on_gpu = setup.plan.device is Device.GPU
        used_bytes = torch.cuda.memory_reserved() if on_gpu else resident_bytes()
        resident_bytes_by_use = {
            (role, use): num_bytes
            for role, engine in model_engines(self._roles).items()
            for use, num_bytes in engine.bytes_on_device().items()
        }
        return OutOfMemory(
            out_of_memory_text(
                setup.plan.device_memory(setup.pool, setup.rank),
                setup.plan.role(call.role) if call.role else None,
                call,
                request.step,
                setup.global_rank,
                used_bytes,
                resident_bytes_by_use,
                error,
            )
        )


def model_engines(roles: Mapping[str, RankRole]) -> dict[str, TrainingEngine]:
    """Return the engines of roles whose models are on this rank, not only generated with."""
    engines = {name: role.engine for name, role in roles.items()}
    return {name: engine for name, engine in engines.items() if engine is not None}
