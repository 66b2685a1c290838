"""A rank: the process of one device, with every role that lives there. A Ray actor.

The driver's dispatcher is its only caller; calls run one at a time, in the order they were sent.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlhf_api.plan import CallPlan, GraphName
from rlhf_api.spec.resources import Device
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.calls.out_of_memory import is_out_of_memory, out_of_memory_text
from rlhf_runtime.calls.reports import CallReport, Statistics
from rlhf_runtime.calls.requests import CallRequest, returned_columns
from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.dataplane.call_protocols import protocol_of
from rlhf_runtime.dataplane.protocol import Coordinates
from rlhf_runtime.dataplane.shards import Shard
from rlhf_runtime.engines.host_memory import keep_free_pages
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.errors import OutOfMemory, UnknownCall, WorkerLost, model_not_saved
from rlhf_runtime.faults import Faults, Phase
from rlhf_runtime.workers.activity import ActivityServer, ProgressSignal, heartbeat_by_cpu
from rlhf_runtime.workers.addresses import own_address, use_interface
from rlhf_runtime.workers.libraries import import_libraries
from rlhf_runtime.workers.process import (
    configure_process,
    resident_bytes,
    usable_cores,
    without_collector,
)
from rlhf_runtime.workers.setup import RankSet, RankSetup, fused_engines, generating_ranks

if TYPE_CHECKING:  # torch is imported when a rank prepares
    from rlhf_runtime.engines.training import TrainingEngine
    from rlhf_runtime.roles.context import Result, Role
    from rlhf_runtime.roles.custom_operation import OperationState

logger = logging.getLogger(__name__)

Answer = bytes | tuple[bytes, Shard] | tuple[bytes, Shard, Shard]
"""A report, rows, and rows that are left."""
FAULTY = {"generate": Phase.GENERATE, "train": Phase.TRAIN}
"""Calls in which faults can be injected."""


class Rank(ActivityServer):
    """Joins its world, builds its roles, runs calls."""

    def __init__(self, setup: RankSetup) -> None:
        self._num_threads = setup.num_threads or max(1, usable_cores() // ranks_of_node(setup))
        configure_process(setup.log_file, self._num_threads, setup.python_path)
        super().__init__()
        self._setup = setup
        self._roles: dict[str, Role] = {}
        self._operations: OperationState = {}
        """What operations keep from step to step."""
        self._faults = Faults(setup.faults, setup.log_file.parent, str(setup.global_rank))
        self._failure: Exception | None = None
        """That of the first call that failed: this incarnation is over."""

    @heartbeat_by_cpu
    def prepare(self) -> tuple[str, int]:
        """Import the numerical libraries; on rank 0 serve the world's store and return where."""
        setup = self._setup
        device = setup.plan.device
        import_libraries(device)
        import torch

        from rlhf_runtime.engines.world import serve_store

        self._device = torch.device("cuda", 0) if device is Device.GPU else torch.device("cpu")
        address = own_address(setup.one_machine)
        use_interface(address)
        logger.info("listens at %s", address)
        torch.set_num_threads(self._num_threads)
        if device is Device.CPU:
            keep_free_pages()
        if setup.rank > 0:
            return address, 0
        self._store = serve_store(address, setup.world_size, setup.timeout_seconds)
        return address, self._store.port

    @heartbeat_by_cpu
    def join(self, served: tuple[str, int]) -> None:
        """Enter the world whose store is served there. Collective."""
        from rlhf_runtime.engines.parallel import make_contexts, make_rank_groups
        from rlhf_runtime.engines.world import World, reach_store

        setup = self._setup
        if setup.rank > 0:
            self._store = reach_store(*served, setup.world_size, setup.timeout_seconds)
        self._world = World.join(
            setup.rank, setup.world_size, self._store, self._device, setup.timeout_seconds
        )
        meshes = [role.mesh for role in setup.plan.roles if role.mesh is not None]
        here = [mesh for mesh in meshes if mesh.pool == setup.pool]
        self._contexts = make_contexts(here, self._world)
        together = [*self._generating_ranks().values(), *self._fused_engines().values()]
        self._rank_groups = make_rank_groups(together, self._world)

    @heartbeat_by_cpu
    def resolve(self, folder: Path) -> dict[str, Path]:
        """Find or make every role's model; returns the folder of each. On rank 0 only."""
        from rlhf_runtime.models.sources import resolve_model
        from rlhf_runtime.models.vocabulary import check_vocabularies

        spec = self._setup.job.spec
        roles = [planned.role for planned in self._setup.plan.roles if planned.head]
        origins = {role: spec.origin_role(role) for role in roles}
        found = {
            origin: resolve_model(spec.model_for(origin).source, spec.schedule.seed, folder)
            for origin in dict.fromkeys(origins.values())
        }
        folders = {role: found[origin] for role, origin in origins.items()}
        check_vocabularies(folders, spec.reward_models)
        return folders

    @heartbeat_by_cpu
    def build(self, folders: Mapping[str, Path]) -> None:
        """Load the model of every role that lives here from its folder, and start its generation
        engine. Collective."""
        from rlhf_runtime.checkpoint.saver import Saver
        from rlhf_runtime.roles.context import RoleContext
        from rlhf_runtime.roles.role_classes import make_role

        self._faults.enter(Phase.START)
        self._saver = Saver(self._world)
        generating = self._generating_ranks()
        for planned in self._setup.plan.roles:
            mesh = None if planned.mesh is None else self._contexts.get(planned.mesh)
            ranks = self._rank_groups.get(generating.get(planned.role, ()))
            if mesh is None and ranks is None:
                continue
            context = RoleContext(
                job=self._setup.job,
                plan=self._setup.plan,
                role=planned.role,
                folder=folders[planned.role],
                world=self._world,
                mesh=mesh,
                sync_group=ranks,
                engine_group=self._rank_groups.get(self._fused_engines().get(planned.role, ())),
                incarnation=self._setup.incarnation,
                faults=self._faults,
                tick=self.activity.tick,
            )
            role = self._roles[planned.role] = make_role(context)
            if role.engine is not None:  # before the next one is built
                role.engine.offload(planned.offload)  # unless it has left for its own generation
            logger.info("built role %s for %s", planned.role, ", ".join(sorted(role.methods)))

    @heartbeat_by_cpu
    def generate_first_token(self) -> None:
        """Let every engine generate one token with the weights that its role has now, so that one
        that cannot is found out before anything is trained. Collective.

        Raises:
            UnsupportedModel: an engine cannot.
        """
        for name in self._generating_ranks():
            role = self._roles.get(name)
            if role is None or role.generation is None:
                continue
            with self._on_device(*([] if role.engine is None else [name])):
                role.generation.sync_initial_weights()
            role.generation.generate_first_token()  # the trainer may have gone from the device

    @heartbeat_by_cpu
    def use_optimizer(self, role: str, settings: OptimizerSettings) -> None:
        """Train a role of this rank with a new optimizer from now on."""
        with self._on_device(role) as (engine,):
            engine.use_optimizer(settings)

    @heartbeat_by_cpu
    def copy_weights(self, source: str, target: str) -> None:
        """Let a role start from the weights of another one that is cut over the same ranks."""
        with self._on_device(source, target) as (given, taking):
            taking.copy_weights_from(given)

    @heartbeat_by_cpu
    def load_weights(self, role: str, folder: Path) -> None:
        """Let a role start from a saved model. Collective over its ranks."""
        with self._on_device(role) as (engine,):
            engine.load_weights(folder)

    @heartbeat_by_cpu
    def save(self, role: str, folder: Path, dtype: str) -> None:
        """Write a role's model in Hugging Face format. Collective."""
        import torch
        from safetensors import SafetensorError

        try:
            with self._on_device(role) as (engine,):
                engine.save(folder, getattr(torch, dtype))
        except (OSError, SafetensorError) as error:
            raise model_not_saved(folder, error) from error

    def begin_save(self, address: str, step: int) -> None:
        """Copy the state after a step and begin to write it there. Collective.

        After a call that failed there is nothing to save, as no call is run.
        """
        if self._failure is not None:
            raise self._failure
        from rlhf_runtime.roles.saving import state_of

        with self.activity.during("save", step, ProgressSignal.CPU):
            state = state_of(self._saved_engines(), self._operations, self._world)
            self._saver.begin(state, f"{address}/{self._setup.pool}")
            self._faults.enter(Phase.SAVE, step)

    def finish_save(self, step: int) -> dict[str, SavedFile]:
        """Wait until a step's state is written; returns the files that this rank wrote."""
        with self.activity.during("save", step, ProgressSignal.CPU):
            written = self._saver.finish()
        return {f"{self._setup.pool}/{name}": file for name, file in written.items()}

    @heartbeat_by_cpu
    def restore(self, address: str) -> None:
        """Go on from a checkpoint. Collective."""
        from rlhf_runtime.roles.saving import restore

        pool = self._setup.pool
        # Only where operations run: elsewhere it would grow old, and be saved again.
        operations = self._operations if self._runs_operations() else None
        restore(self._saved_engines(), operations, self._world, address, pool)

    def run(self, header: bytes, own: bytes, *shards: Shard) -> Answer:
        """One call: a report, and on ranks whose output counts a shard, and another one where the
        call leaves rows.

        Calls are sent ahead. After one that failed none is run: each gives the first one's error,
        not what follows from it.
        """
        request = CallRequest.from_message(header, own)
        if request.incarnation != self._setup.incarnation:
            raise WorkerLost(
                f"{request.call.id} is for incarnation {request.incarnation}, this rank belongs to "
                f"{self._setup.incarnation}: the message is late; it was not run"
            )
        if self._failure is not None:
            raise self._failure
        try:
            with self.activity.during(request.call.id, request.step):
                return self._run(request, shards)
        except Exception as error:
            self._failure = error
            raise

    def _run(self, request: CallRequest, shards: Sequence[Shard]) -> Answer:
        start = time.time()
        planned = self._planned(request)
        assert planned.mesh is not None
        at = Coordinates.in_call(self._setup.rank, planned.mesh, planned.source_mesh)
        inputs = CallInputs(request, shards, at)
        try:
            if request.graph is GraphName.STEP and request.call.method in FAULTY:
                self._faults.enter(FAULTY[request.call.method], request.step)
            result = self._method(request)(inputs)
            start = start if result.began is None else result.began
        except Exception as error:
            if is_out_of_memory(error):
                raise self._out_of_memory(request, error) from error
            raise
        counts = protocol_of(request.call).collect(at)  # other ranks know the same, or nothing
        statistics = result.statistics if counts else Statistics()
        report = self._report(request, statistics, start).to_bytes()
        names = returned_columns(request.call)
        if not names or not counts:
            return report
        assert result.index is not None, "whoever makes columns says of which rows"
        made = Shard(result.index, {name: result.columns[name] for name in names})
        if result.unfinished is None:
            return report, made
        left = {name: result.unfinished.columns[name] for name in names}
        return report, made, Shard(result.unfinished.index, left)

    def echo(self) -> None:
        """Do nothing: for measuring the way here and back."""

    def close(self) -> None:
        """Leave the world and end the engines, before the process ends."""
        with without_collector():
            for role in self._roles.values():
                role.close()
        self._roles.clear()
        self._world.close()
        self.activity.close()

    def _out_of_memory(self, request: CallRequest, error: Exception) -> OutOfMemory:
        import torch

        on_gpu = self._device.type == "cuda"
        used = torch.cuda.memory_reserved() if on_gpu else resident_bytes()
        setup = self._setup
        held = {
            (role, what): num_bytes
            for role, engine in self._engines().items()
            for what, num_bytes in engine.bytes_on_device().items()
        }
        return OutOfMemory(
            out_of_memory_text(
                setup.plan.device_memory(setup.pool, setup.rank),
                setup.plan.role(request.call.role) if request.call.role else None,
                request.call,
                request.step,
                setup.global_rank,
                used,
                held,
                error,
            )
        )

    def _runs_operations(self) -> bool:
        """Whether calls without a model are run on this rank: they are beside the policy."""
        setup = self._setup
        planned = setup.plan.role(setup.plan.policy)
        assert planned is not None and planned.mesh is not None
        return planned.mesh.pool == setup.pool and setup.rank in planned.mesh.ranks

    def _saved_engines(self) -> dict[str, TrainingEngine]:
        saved = [planned.role for planned in self._setup.plan.roles if planned.is_saved]
        return {role: engine for role, engine in self._engines().items() if role in saved}

    def _engines(self) -> dict[str, TrainingEngine]:
        """Of the roles whose models are held here, not only generated with."""
        engines = {role: player.engine for role, player in self._roles.items()}
        return {role: engine for role, engine in engines.items() if engine is not None}

    def _engine(self, role: str) -> TrainingEngine:
        return self._engines()[role]

    def _generating_ranks(self) -> Mapping[str, RankSet]:
        return generating_ranks(self._setup.plan, self._setup.pool)

    def _fused_engines(self) -> Mapping[str, RankSet]:
        return fused_engines(self._setup.plan, self._setup.pool)

    @contextmanager
    def _on_device(self, *roles: str) -> Iterator[tuple[TrainingEngine, ...]]:
        """Engines of roles, on the device for what no call of the plan does."""
        from rlhf_runtime.engines.offloading import on_device

        engines = tuple(self._engine(role) for role in roles)
        with on_device(*engines):
            yield engines

    def _planned(self, request: CallRequest) -> CallPlan:
        planned = self._setup.plan.call(request.graph, request.call.id)
        if planned is None or planned.mesh is None:
            raise UnknownCall(
                f"the plan has no call {request.call.id} in {request.graph.value}: the step made "
                "another call than its trace; a step must make the same calls every time"
            )
        return planned

    def _method(self, request: CallRequest) -> Callable[[CallInputs], Result]:
        if request.call.role is None:
            from rlhf_runtime.roles.operations import compute

            mesh = self._planned(request).mesh
            assert mesh is not None
            parallel = self._contexts[mesh]
            return lambda inputs: compute(inputs, parallel, self._operations)
        if source := request.call.copied_role:
            return self._copying(source, request.call.role)
        return self._roles[request.call.role].methods[request.call.method]

    def _copying(self, source: str, target: str) -> Callable[[CallInputs], Result]:
        from rlhf_runtime.roles.context import Result

        def copy(_: CallInputs) -> Result:
            self._engine(target).copy_weights_from(self._engine(source), entirely=True)
            return Result()

        return copy

    def _report(self, request: CallRequest, statistics: Statistics, start: float) -> CallReport:
        from rlhf_runtime.telemetry.records import Span

        call, process = request.call, f"rank {self._setup.global_rank}"
        span = Span(process, call.role or "", call.method, start, time.time())
        return CallReport(call.id, statistics, (span,), resident_bytes())


def ranks_of_node(setup: RankSetup) -> int:
    """Ranks that share the cores of a rank's node: on one machine those of all pools."""
    if setup.one_machine:
        return setup.plan.num_devices
    return setup.plan.pool(setup.pool).devices_per_node
