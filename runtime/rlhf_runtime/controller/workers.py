"""One incarnation of a job's workers: started in parallel, ended together."""

from __future__ import annotations

import secrets
import shutil
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_api.mesh import Mesh
from rlhf_api.plan import Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_runtime.controller.environments import require_same_tools
from rlhf_runtime.controller.local_ray import SHARED_MEMORY
from rlhf_runtime.controller.nodes import Node, environment_hosts, rank_nodes, reward_hosts
from rlhf_runtime.controller.results import iterate_completed, wait_for
from rlhf_runtime.controller.watch import WorkerWatch
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.controller.worker_sites import ReservedPool, Site
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.errors import NoProgress
from rlhf_runtime.faults import Fault
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.journal.folder import Attempt
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.rewards.declared_metrics import check_metrics
from rlhf_runtime.workers.data_host import DataHost
from rlhf_runtime.workers.environment_host import EnvironmentHost
from rlhf_runtime.workers.rank import Rank
from rlhf_runtime.workers.reward_host import RewardHost
from rlhf_runtime.workers.setup import EARLY_GROUP, RankSetup

# Time limit for workers to end by themselves.
CLOSE_SECONDS = 10.0

# Upper limit of slices that a reward host scores at the same time.
MAX_CONCURRENT_CALLS = 64

# Upper limit of requests about conversations that a host answers at the same time.
MAX_CONCURRENT_EPISODES = 10_000

# Phases of the start-up that do not wait for another one.
INDEPENDENT_PHASES = ("libraries", "verifiers")

# Called with the name of a start-up phase and its seconds when it is over.
Started = Callable[[str, float], None]


@dataclass(frozen=True)
class WorkerSettings:
    """Folders and limits of workers."""

    models: Path
    """Folder for builtin models."""
    logs: Path
    python_path: PythonPath
    timeout_seconds: float
    threads_per_rank: int | None = None
    """None: an equal share of the node's cores."""
    faults: tuple[Fault, ...] = ()
    """Injected faults."""
    require_folder: Hook = noop
    """Raises if the run's folder was deleted."""
    attempt: Attempt | None = None
    """Attempt of the journal. None: no answers are kept."""


class Workers:
    """The ranks of every pool, the data host and the reward hosts."""

    def __init__(
        self,
        job: RLHFJob,
        plan: Plan,
        settings: WorkerSettings,
        site: Site,
    ) -> None:
        self.job = job
        self.plan = plan
        self.incarnation = uuid.uuid4().hex[:12]
        self._watch_key = secrets.token_hex(16)
        self._settings = settings
        self._site = site
        # Model folder of every role; set by `build`.
        self.folders: dict[str, Path] = {}
        # Counts of data rows, usable and not; set by `build`.
        self.counts: dict[str, int] = {}
        # Metrics that verifiers declare, by the reward's name; set by `build`.
        self.measured: dict[str, str] = {}
        self._begin = time.monotonic()
        self._reserved: dict[str, PlacementGroup] = {}
        try:
            self._reserve()
        except BaseException:
            self._release_nodes()
            raise
        self._ranks = {pool.name: self._start_ranks(pool) for pool in plan.pools}
        first_node = Node(plan.policy_pool.name, 0)
        self.data = self._start_host(ray.remote(DataHost), "data", first_node, plan)
        hosts = reward_hosts(plan)
        # By name.
        self.rewards = {name: self._start_reward_host(name, len(hosts)) for name in hosts}
        self.environments = self._start_environment_hosts()
        # Workers by pool; None: reward hosts.
        self._hosts = HostGroup(list(self.rewards.values()), list(hosts.values()))
        self.worker_groups: dict[str | None, WorkerGroup] = {None: self._hosts}
        self.worker_groups |= {
            pool.name: WorkerGroup(self._ranks[pool.name], rank_nodes(pool)) for pool in plan.pools
        }

    @property
    def ranks(self) -> tuple[Any, ...]:
        """The ranks of all pools, by global rank."""
        return tuple(rank for ranks in self._ranks.values() for rank in ranks)

    def build(self, started: Started) -> None:
        """Load models, data and verifiers, all at the same time."""
        addresses = self._activity_addresses()
        # Everything is sent at once: workers wait for each other's results, the driver for the
        # first error of any.
        stores = {name: [rank.prepare.remote() for rank in r] for name, r in self._ranks.items()}
        first, *_ = self._ranks[self.plan.policy_pool.name]
        folders = first.resolve.remote(self._settings.models)
        joined = [
            rank.join.remote(stores[name][0]) for name, r in self._ranks.items() for rank in r
        ]
        environments = [host.start.remote() for host in self.environments.values()]
        # All hosts describe the same environment; it is checked once they have.
        description = environments[0] if environments else None
        built = [
            rank.build.remote(
                folders, self._hosts.host_for(node), self.environments.get(node), description
            )
            for pool in self.plan.pools
            for rank, node in zip(self._ranks[pool.name], rank_nodes(pool), strict=True)
        ]
        data = self.data.load.remote(folders, description)
        verifiers = [host.start.remote() for host in self.rewards.values()]
        prepared = [store for of_pool in stores.values() for store in of_pool]
        phases = {
            "libraries": prepared,
            "data": [data],
            "verifiers": [*verifiers, *environments],
            # With the first phase's references: the driver may hear of models first.
            "models and engines": [*prepared, *joined, *built],
        }
        self._watch = self._make_watch(wait_for(addresses, self._start_deadline()))
        libraries = self._begin
        for phase in iterate_completed(phases, self.poll):
            now = time.monotonic()
            if phase == "libraries":
                libraries = now
            if phase == "verifiers":
                require_same_tools(wait_for(environments))
                self.measured, *_ = wait_for(verifiers)
                check_metrics(self.job.spec, self.measured)
            started(phase, now - (self._begin if phase in INDEPENDENT_PHASES else libraries))
        if not self.plan.standby:
            self._site.unload_libraries(self._nodes, self.poll)
        self.folders, self.counts = wait_for([folders, data])

    def call_ranks(self, method: str, *arguments: Any) -> None:
        """Call a method on every rank and wait; raises the first error."""
        self._call(self.ranks, method, *arguments)

    def call_role(self, role: str, method: str, *arguments: Any) -> None:
        """Call a method on every rank with a role's model and wait; raises the first error."""
        mesh = self._mesh_of(role)
        self._call([self._ranks[mesh.pool][rank] for rank in mesh.ranks], method, *arguments)

    def copy_weights(self, source: str, target: str) -> None:
        """Copy a role's weights to another: within ranks if both are on the same, else by a saved
        model."""
        one, other = self._mesh_of(source), self._mesh_of(target)
        if (one.pool, one.ranks) == (other.pool, other.ranks):
            self.call_role(target, "copy_weights", source, target)
            return
        folder = self._settings.models / f"weights-of-{source}"
        self.call_role(source, "save", source, folder, "float32")
        self.call_role(target, "load_weights", target, folder)
        shutil.rmtree(folder)

    def poll(self) -> None:
        """Check workers and Ray while the driver waits.

        Raises:
            RayFailed: Ray itself has died.
            NoProgress: a worker hangs.
            RunFolderLost: the run's folder was deleted, moved or replaced.
        """
        self._site.require_ray()
        self._watch.poll()
        self._site.report_alive()

        # Last, as storage may hang.
        self._settings.require_folder()

    def close(self) -> None:
        """Let the workers leave their world in order, then end them."""
        everyone = [*self.ranks, *self.rewards.values(), *self.environments.values()]
        closing = [worker.close.remote() for worker in everyone]
        try:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the workers at once."""
        hosts = (*self.rewards.values(), *self.environments.values(), self.data)
        for worker in (*self.ranks, *hosts):
            ray.kill(worker)
        self._release_nodes()
        for segment in SHARED_MEMORY.glob(f"*{self.incarnation}*"):
            # Killed ranks leave the shared memory of their engines.
            segment.unlink(missing_ok=True)

    def _reserve(self) -> None:
        """Reserve the devices of all pools, and import the workers' libraries there."""
        for pool, bundles in self._site.reserve(self.plan.pools):
            self._reserved[pool.name] = bundles
        self._site.import_libraries(self._nodes, self._start_deadline())

    def _release_nodes(self) -> None:
        for bundles in self._reserved.values():
            remove_placement_group(bundles)

    @property
    def _nodes(self) -> list[ReservedPool]:
        return [(pool, self._reserved[pool.name]) for pool in self.plan.pools]

    def _mesh_of(self, role: str) -> Mesh:
        planned = self.plan.role(role)
        assert planned is not None and planned.mesh is not None
        return planned.mesh

    def _call(self, ranks: Sequence[Any], method: str, *arguments: Any) -> None:
        wait_for([getattr(rank, method).remote(*arguments) for rank in ranks], self.poll)

    def _start_deadline(self) -> Hook:
        """Return a check that raises if workers take too long to start."""
        deadline = self.job.spec.failure_policy.progress_deadline_seconds
        begin = time.monotonic()

        def poll() -> None:
            self._site.require_ray()
            self._settings.require_folder()
            if time.monotonic() - begin > deadline:
                raise NoProgress(
                    f"workers did not come to life: got no answer of some for {deadline:g} s "
                    "(failurePolicy.progressDeadlineSeconds); look into the logs"
                )

        return poll

    def _activity_addresses(self) -> list[Any]:
        """Request the activity addresses of all workers, ranks first."""
        hosts = [self.data, *self.rewards.values(), *self.environments.values()]
        everyone = [*self.ranks, *hosts]
        return [
            worker.serve_activity.remote(self._site.one_machine, self._watch_key)
            for worker in everyone
        ]

    def _make_watch(self, addresses: Sequence[tuple[str, int]]) -> WorkerWatch:
        ranks = [f"rank {number}" for number in range(self.plan.num_devices)]
        environments = [] if not self.environments else list(environment_hosts(self.plan))
        hosts = ["data", *self.rewards, *environments]
        names = dict(zip([*ranks, *hosts], addresses, strict=True))
        deadline = self.job.spec.failure_policy.progress_deadline_seconds
        stacks = self._settings.logs / "stacks.txt"
        return WorkerWatch(names, self._watch_key, deadline, stacks, self.job.name)

    def _start_ranks(self, pool: Pool) -> tuple[Any, ...]:
        return tuple(self._start_rank(pool, rank) for rank in range(pool.num_devices))

    def _start_rank(self, pool: Pool, rank: int) -> Any:
        number = self.plan.rank_offset(pool.name) + rank
        setup = RankSetup(
            job=self.job,
            plan=self.plan,
            pool=pool.name,
            rank=rank,
            one_machine=self._site.one_machine,
            timeout_seconds=self._settings.timeout_seconds,
            num_threads=self._settings.threads_per_rank,
            incarnation=self.incarnation,
            log_file=self._settings.logs / f"rank-{number}.log",
            python_path=self._settings.python_path,
            faults=self._settings.faults,
        )
        return (
            ray.remote(Rank)
            .options(
                name=self._actor_name(f"rank {number}"),
                num_cpus=1,
                num_gpus=1 if pool.device is Device.GPU else 0,
                max_restarts=0,
                max_task_retries=0,
                scheduling_strategy=self._on_node(pool, rank // pool.devices_per_node),
                **self._site.worker_options,
            )
            .remote(setup)
        )

    def _start_reward_host(self, name: str, count: int) -> Any:
        node = reward_hosts(self.plan)[name]
        # The first host has all faults.
        faults = () if node.number else self._settings.faults
        # Slices of two roles, or of two passes.
        max_concurrency = min(MAX_CONCURRENT_CALLS, 2 * -(-self.plan.num_devices // count))
        more = (name, Slice(node.number, count), self._settings.attempt, faults)
        # One thread keeps the order of messages.
        kind = ray.remote(concurrency_groups={EARLY_GROUP: 1})(RewardHost)
        return self._start_host(kind, name, node, *more, max_concurrency=max_concurrency)

    def _start_environment_hosts(self) -> dict[Node, Any]:
        """Start the environment hosts; returns them by node, nothing without conversations."""
        if self.job.spec.rollout.environment is None:
            return {}
        return {
            node: self._start_host(
                ray.remote(EnvironmentHost),
                *(name, node, name, self._settings.attempt),
                max_concurrency=MAX_CONCURRENT_EPISODES,
                # It waits for other processes; pools have no core for it.
                num_cpus=0,
            )
            for name, node in environment_hosts(self.plan).items()
        }

    def _start_host(
        self,
        kind: Any,
        name: str,
        node: Node,
        *more: Any,
        max_concurrency: int = 1,
        num_cpus: int = 1,
    ) -> Any:
        """Start a host, by its class for Ray, on a node."""
        log = self._settings.logs / f"{name.replace(' ', '-')}.log"
        options = kind.options(
            name=self._actor_name(name),
            num_cpus=num_cpus,
            max_concurrency=max_concurrency,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._on_node(self.plan.pool(node.pool), node.number),
            **self._site.worker_options,
        )
        return options.remote(self.job, log, self._settings.python_path, *more)

    def _on_node(self, pool: Pool, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(
            self._reserved[pool.name], placement_group_bundle_index=node
        )

    def _actor_name(self, worker: str) -> str:
        """Return the actor's name, which Ray reports if it dies."""
        return f"{worker} in {self.incarnation}"
