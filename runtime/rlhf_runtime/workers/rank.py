"""A rank: the process of one device, with every role on it. A Ray actor.

Rank owns the process, its world and its roles from start to end; `CallRunner` runs the calls. The
driver's dispatcher is its only caller. Calls run one at a time, in the order they were sent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf_api.mesh import Mesh
from rlhf_api.spec.resources import Device
from rlhf_runtime.calls.ended_rows import EndedRows
from rlhf_runtime.calls.requests import CallRequest
from rlhf_runtime.checkpoint.record import SavedFile
from rlhf_runtime.dataplane.shards import Shard
from rlhf_runtime.engines.host_memory import keep_free_pages
from rlhf_runtime.engines.optimizer_settings import OptimizerSettings
from rlhf_runtime.errors import model_not_saved
from rlhf_runtime.faults import FaultPhase, Faults
from rlhf_runtime.workers.activity import ActivityServer, ProgressSignal, heartbeat_by_cpu
from rlhf_runtime.workers.addresses import own_address, use_interface
from rlhf_runtime.workers.call_runner import Answer, CallRunner, model_engines
from rlhf_runtime.workers.libraries import import_libraries
from rlhf_runtime.workers.process import (
    configure_process,
    usable_cores,
    without_collector,
)
from rlhf_runtime.workers.setup import (
    EARLY_GROUP,
    RankSet,
    RankSetup,
    fused_engines,
    generating_ranks,
)

if TYPE_CHECKING:  # torch is imported when a rank prepares
    from rlhf_runtime.conversations.interfaces import EnvironmentAccess
    from rlhf_runtime.engines.parallel import ParallelContext
    from rlhf_runtime.engines.training import TrainingEngine
    from rlhf_runtime.environments.settings import EnvironmentDescription
    from rlhf_runtime.roles.context import RankRole
    from rlhf_runtime.roles.custom_operation import OperationState
    from rlhf_runtime.roles.early_rows import SendEnded

logger = logging.getLogger(__name__)


class Rank(ActivityServer):
    """Joins its world, builds its roles, saves and restores them, runs calls."""

    def __init__(self, setup: RankSetup) -> None:
        self._num_threads = setup.num_threads or max(1, usable_cores() // ranks_of_node(setup))
        configure_process(setup.log_file, self._num_threads, setup.python_path)
        super().__init__()
        self._setup = setup
        self._roles: dict[str, RankRole] = {}
        # State of operations, from step to step.
        self._operations: OperationState = {}
        self._contexts: dict[Mesh, ParallelContext] = {}
        self._faults = Faults(setup.faults, setup.log_file.parent, str(setup.global_rank))
        self._calls = CallRunner(setup, self._roles, self._operations, self._contexts, self._faults)
        # Error of the first call that failed: it ends this incarnation.
        self._failure: Exception | None = None

    @heartbeat_by_cpu
    def prepare(self) -> tuple[str, int]:
        """Import the numerical libraries; on rank 0 serve the world's store.

        Returns:
            This rank's host, and the store's port; 0 on other ranks.
        """
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
        """Join the world. Collective.

        Args:
            served: host and port of rank 0's store.
        """
        from rlhf_runtime.engines.parallel import make_contexts, make_rank_groups
        from rlhf_runtime.engines.world import World, reach_store

        setup = self._setup
        if setup.rank > 0:
            self._store = reach_store(*served, setup.world_size, setup.timeout_seconds)
        self._world = World.join(
            setup.rank, setup.world_size, self._store, self._device, setup.timeout_seconds
        )
        meshes = [role.mesh for role in setup.plan.roles if role.mesh is not None]
        own_meshes = [mesh for mesh in meshes if mesh.pool == setup.pool]
        self._contexts.update(make_contexts(own_meshes, self._world))
        rank_sets = [*self._generating_ranks().values(), *self._fused_engines().values()]
        self._rank_groups = make_rank_groups(rank_sets, self._world)

    @heartbeat_by_cpu
    def resolve(self, folder: Path) -> dict[str, Path]:
        """Find or create the model of every role. On rank 0 only.

        Returns:
            The folder of each role's model.
        """
        from rlhf_runtime.models.sources import resolve_model
        from rlhf_runtime.models.vocabulary import check_vocabularies

        spec = self._setup.job.spec
        roles = [planned.role for planned in self._setup.plan.roles if planned.head]
        origins = {role: spec.origin_role(role) for role in roles}
        folder_by_origin = {
            origin: resolve_model(spec.model_for(origin).source, spec.schedule.seed, folder)
            for origin in dict.fromkeys(origins.values())
        }
        folders = {role: folder_by_origin[origin] for role, origin in origins.items()}
        check_vocabularies(folders, spec.reward_models)
        return folders

    @heartbeat_by_cpu
    def build(
        self,
        folders: Mapping[str, Path],
        reward_host: Any = None,
        environment_host: Any = None,
        environment: EnvironmentDescription | None = None,
    ) -> None:
        """Load the models of this rank's roles, and start their generation engines. Collective.

        Args:
            folders: folder of each role's model.
            reward_host: handle of the host that scores what this rank generates. None: any does.
            environment_host: handle of the node's host of conversations. None: there are none.
            environment: the tools of conversations.
        """
        from rlhf_runtime.checkpoint.saver import Saver
        from rlhf_runtime.models.vocabulary import tokens_without_text
        from rlhf_runtime.roles.context import RoleContext
        from rlhf_runtime.roles.role_classes import make_role

        self._faults.enter(FaultPhase.START)
        self._saver = Saver(self._world)
        generating = self._generating_ranks()
        # The policy's tokenizer made the prompts. Other roles with its vocabulary exclude the same
        # tokens, also where their folders have no tokenizer: losses compare their probabilities.
        excluded_tokens = tokens_without_text(folders[self._setup.plan.policy])
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
                excluded_tokens=excluded_tokens,
                tick=self.activity.tick,
                send_ended=None if reward_host is None else sender_to(reward_host),
                environment=None
                if environment is None
                else access_to(environment_host, environment),
            )
            role = self._roles[planned.role] = make_role(context)
            if role.engine is not None:
                # Before the next role is built, which may need the memory. No effect if the role
                # was offloaded for its own generation.
                role.engine.offload(planned.offload)
            logger.info("built role %s for %s", planned.role, ", ".join(sorted(role.methods)))

    @heartbeat_by_cpu
    def generate_first_token(self) -> None:
        """Let every engine generate one token with the current weights of its role. Collective.

        An engine that cannot is so detected before anything is trained.

        Raises:
            UnsupportedModel: an engine cannot.
        """
        for name in self._generating_ranks():
            role = self._roles.get(name)
            if role is None or role.generation is None:
                continue
            with self._on_device(*([] if role.engine is None else [name])):
                role.generation.sync_initial_weights()
            # Outside of `_on_device`: the trainer may be offloaded, as in the steps.
            role.generation.generate_first_token()

    @heartbeat_by_cpu
    def use_optimizer(self, role: str, settings: OptimizerSettings) -> None:
        """Start to train a role with a new optimizer."""
        with self._on_device(role) as (engine,):
            engine.use_optimizer(settings)

    @heartbeat_by_cpu
    def copy_weights(self, source: str, target: str) -> None:
        """Copy weights from a role that is sharded over the same ranks."""
        with self._on_device(source, target) as (source_engine, target_engine):
            target_engine.copy_weights_from(source_engine)

    @heartbeat_by_cpu
    def load_weights(self, role: str, folder: Path) -> None:
        """Load a role's weights from a saved model. Collective over its ranks."""
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
        """Copy the state after a step and begin to write it. Collective."""
        if self._failure is not None:
            raise self._failure
        from rlhf_runtime.roles.saving import state_of

        with self.activity.during("save", step, ProgressSignal.CPU):
            state = state_of(self._saved_engines(), self._operations, self._world)
            self._saver.begin(state, f"{address}/{self._setup.pool}")
            self._faults.enter(FaultPhase.SAVE, step)

    def finish_save(self, step: int) -> dict[str, SavedFile]:
        """Wait until a step's state is written; returns the files that this rank wrote."""
        with self.activity.during("save", step, ProgressSignal.CPU):
            written = self._saver.finish()
        return {f"{self._setup.pool}/{name}": file for name, file in written.items()}

    @heartbeat_by_cpu
    def restore(self, address: str) -> None:
        """Load a checkpoint. Collective."""
        from rlhf_runtime.roles.saving import restore

        pool = self._setup.pool
        # Only where operations run: elsewhere it would become outdated, and be saved again.
        operations = self._operations if self._runs_operations() else None
        restore(self._saved_engines(), operations, self._world, address, pool)

    def run(self, header: bytes, own: bytes, *shards: Shard) -> Answer:
        """Run one call; `CallRunner.run` describes the answer.

        Raises:
            WorkerLost: the request is for another incarnation.
            Exception: the error of this call, or of the first call that failed.
        """
        request = CallRequest.from_message(header, own)
        self._calls.require_current(request)
        # Calls are sent ahead: after a failure, each reports the cause instead of a consequence.
        if self._failure is not None:
            raise self._failure
        try:
            with self.activity.during(request.call.id, request.step):
                return self._calls.run(request, shards)
        except Exception as error:
            self._failure = error
            raise

    def echo(self) -> None:
        """Do nothing, to measure a round trip."""

    def close(self) -> None:
        """End roles and engines and leave the world, before the process ends."""
        with without_collector():
            for role in self._roles.values():
                role.close()
        self._roles.clear()
        self._world.close()
        self.activity.close()

    def _runs_operations(self) -> bool:
        """True if calls without a model run on this rank: they run on the policy's ranks."""
        setup = self._setup
        planned = setup.plan.role(setup.plan.policy)
        assert planned is not None and planned.mesh is not None
        return planned.mesh.pool == setup.pool and setup.rank in planned.mesh.ranks

    def _saved_engines(self) -> dict[str, TrainingEngine]:
        saved = [planned.role for planned in self._setup.plan.roles if planned.is_saved]
        return {
            role: engine for role, engine in model_engines(self._roles).items() if role in saved
        }

    def _generating_ranks(self) -> Mapping[str, RankSet]:
        return generating_ranks(self._setup.plan, self._setup.pool)

    def _fused_engines(self) -> Mapping[str, RankSet]:
        return fused_engines(self._setup.plan, self._setup.pool)

    @contextmanager
    def _on_device(self, *roles: str) -> Iterator[tuple[TrainingEngine, ...]]:
        """Load engines of roles onto the device, for work outside of the plan's calls."""
        from rlhf_runtime.engines.offloading import on_device

        resident = model_engines(self._roles)
        engines = tuple(resident[role] for role in roles)
        with on_device(*engines):
            yield engines


def sender_to(reward_host: Any) -> SendEnded:
    """Return a function that sends ended responses to a reward host.

    Args:
        reward_host: its handle.
    """
    method = reward_host.score_early.options(concurrency_group=EARLY_GROUP)

    def send(ended: EndedRows) -> None:
        # Nobody waits for it: the call that scores asks for what is missing.
        method.remote(ended.to_bytes())

    return send


def access_to(host: Any, environment: EnvironmentDescription) -> EnvironmentAccess:
    """Return the access to the environments of a node.

    Args:
        host: handle of the environment host.
        environment: its tools.
    """
    from rlhf_runtime.conversations.interfaces import EnvironmentAccess
    from rlhf_runtime.workers.environment_client import RayEpisodeClient

    return EnvironmentAccess(environment, lambda: RayEpisodeClient(host))


def ranks_of_node(setup: RankSetup) -> int:
    """Return how many ranks share the cores of a rank's node; on one machine the ranks of all
    pools."""
    if setup.one_machine:
        return setup.plan.num_devices
    return setup.plan.pool(setup.pool).devices_per_node
