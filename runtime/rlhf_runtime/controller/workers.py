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

from rlhf_api.plan import Mesh, Plan, Pool
from rlhf_api.spec.job import RLHFJob
from rlhf_api.spec.resources import Device
from rlhf_runtime.controller.local_ray import SHARED_MEMORY
from rlhf_runtime.controller.nodes import rank_nodes, reward_hosts
from rlhf_runtime.controller.results import iterate_completed, wait_for
from rlhf_runtime.controller.site import ReservedPool, Site
from rlhf_runtime.controller.watch import WorkerWatch
from rlhf_runtime.controller.worker_groups import HostGroup, WorkerGroup
from rlhf_runtime.dataplane.partition import Slice
from rlhf_runtime.errors import NoProgress
from rlhf_runtime.faults import Fault
from rlhf_runtime.hooks import Hook, noop
from rlhf_runtime.rewards.declared_metrics import check_metrics
from rlhf_runtime.workers.data_host import DataHost
from rlhf_runtime.workers.rank import Rank
from rlhf_runtime.workers.reward_host import RewardHost
from rlhf_runtime.workers.setup import RankSetup

CLOSE_SECONDS = 10.0
"""How long workers may take to end by themselves."""

MAX_CONCURRENT_CALLS = 64
"""Parts of batches that a reward host scores at a time, at most."""

INDEPENDENT_PHASES = ("libraries", "verifiers")
"""Phases of the start-up that wait for no other."""

Started = Callable[[str, float], None]
"""Told the name of a start-up phase and its seconds when it is over."""


@dataclass(frozen=True)
class WorkerSettings:
    """Where workers write, and what they may use."""

    models: Path
    """Where builtin models are made."""
    logs: Path
    python_path: tuple[str, ...]
    timeout_seconds: float
    threads_per_rank: int | None = None
    """Default: an equal share of its node's cores."""
    faults: tuple[Fault, ...] = ()
    """Faults on purpose."""
    require_folder: Hook = noop
    """Raises where the run's folder is gone."""


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
        self.folders: dict[str, Path] = {}
        """Of every role's model; known when built."""
        self.counts: dict[str, int] = {}
        """Rows of the data, used and not; known when built."""
        self.measured: dict[str, str] = {}
        """Metrics that verifiers declare, by the reward's name; known when built."""
        self._begin = time.monotonic()
        self._reserved: dict[str, PlacementGroup] = {}
        try:
            self._reserve()
        except BaseException:
            self._release_nodes()
            raise
        self._ranks = {pool.name: self._start_ranks(pool) for pool in plan.pools}
        self.data = self._start_host(DataHost, "data", 0, plan)
        hosts = reward_hosts(plan)
        self.rewards = {name: self._start_reward_host(name, len(hosts)) for name in hosts}
        """By name."""
        self.worker_groups: dict[str | None, WorkerGroup] = {
            None: HostGroup(list(self.rewards.values()), list(hosts.values()))
        }
        """The workers of each pool, and the hosts beside them (None)."""
        self.worker_groups |= {
            pool.name: WorkerGroup(self._ranks[pool.name], rank_nodes(pool)) for pool in plan.pools
        }

    @property
    def ranks(self) -> tuple[Any, ...]:
        """The ranks of all pools, in the order of their numbers."""
        return tuple(rank for ranks in self._ranks.values() for rank in ranks)

    def build(self, started: Started) -> None:
        """Load models, data and verifiers, all at the same time.

        Everything is sent at once; workers wait for each other's results, the driver for the first
        error of any.
        """
        addresses = self._activity_addresses()
        stores = {name: [rank.prepare.remote() for rank in r] for name, r in self._ranks.items()}
        first, *_ = self._ranks[self.plan.policy_pool.name]
        folders = first.resolve.remote(self._settings.models)
        joined = [
            rank.join.remote(stores[name][0]) for name, r in self._ranks.items() for rank in r
        ]
        built = [rank.build.remote(folders) for rank in self.ranks]
        data = self.data.load.remote(folders)
        verifiers = [host.start.remote() for host in self.rewards.values()]
        phases = {
            "libraries": [store for of_pool in stores.values() for store in of_pool],
            "data": [data],
            "verifiers": verifiers,
            "models and engines": [*joined, *built],
        }
        self._watch = self._make_watch(wait_for(addresses, self._start_deadline()))
        libraries = self._begin
        for phase in iterate_completed(phases, self.poll):
            now = time.monotonic()
            if phase == "libraries":
                libraries = now
            if phase == "verifiers":
                self.measured, *_ = wait_for(verifiers)
                check_metrics(self.job.spec, self.measured)
            started(phase, now - (self._begin if phase in INDEPENDENT_PHASES else libraries))
        if not self.plan.standby:
            self._site.unload_libraries(self._nodes, self.poll)
        self.folders, self.counts = wait_for([folders, data])

    def call_ranks(self, method: str, *arguments: Any) -> None:
        """Call a method on every rank and wait; the first error is raised."""
        self._call(self.ranks, method, *arguments)

    def call_role(self, role: str, method: str, *arguments: Any) -> None:
        """Call a method on every rank that holds a role's model and wait; the first error is
        raised."""
        mesh = self._mesh_of(role)
        self._call([self._ranks[mesh.pool][rank] for rank in mesh.ranks], method, *arguments)

    def copy_weights(self, source: str, target: str) -> None:
        """Let a role start from the weights of another: within its ranks where both are on the
        same, else by a saved model."""
        one, other = self._mesh_of(source), self._mesh_of(target)
        if (one.pool, one.ranks) == (other.pool, other.ranks):
            self.call_role(target, "copy_weights", source, target)
            return
        folder = self._settings.models / f"weights-of-{source}"
        self.call_role(source, "save", source, folder, "float32")
        self.call_role(target, "load_weights", target, folder)
        shutil.rmtree(folder)

    def poll(self) -> None:
        """What is looked after while workers are waited for.

        Raises:
            RayFailed: Ray itself has gone.
            NoProgress: a worker hangs.
            RunFolderLost: the run's folder was deleted, moved or replaced.
        """
        self._site.require_ray()
        self._watch.poll()
        self._site.report_alive()
        self._settings.require_folder()  # last, as storage may hang

    def close(self) -> None:
        """Let the workers leave their world in order, then end them."""
        everyone = [*self.ranks, *self.rewards.values()]
        closing = [worker.close.remote() for worker in everyone]
        try:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        finally:
            self.kill()

    def kill(self) -> None:
        """End the workers at once."""
        for worker in (*self.ranks, *self.rewards.values(), self.data):
            ray.kill(worker)
        self._release_nodes()
        for segment in SHARED_MEMORY.glob(f"*{self.incarnation}*"):
            segment.unlink(missing_ok=True)  # killed ranks leave what their engines shared

    def _reserve(self) -> None:
        """Set the devices of all pools aside, with what their workers import in memory."""
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
        """Raises when workers have taken too long to come to life."""
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
        """References to where each worker answers; the ranks' come first."""
        everyone = [*self.ranks, self.data, *self.rewards.values()]
        return [
            worker.serve_activity.remote(self._site.one_machine, self._watch_key)
            for worker in everyone
        ]

    def _make_watch(self, addresses: Sequence[tuple[str, int]]) -> WorkerWatch:
        ranks = [f"rank {number}" for number in range(self.plan.num_devices)]
        names = dict(zip([*ranks, "data", *self.rewards], addresses, strict=True))
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
        """One of so many."""
        node = reward_hosts(self.plan)[name].number
        faults = () if node else self._settings.faults  # the first host has all
        max_concurrency = min(
            MAX_CONCURRENT_CALLS, 2 * -(-self.plan.num_devices // count)
        )  # of two roles, or passes
        more = (name, Slice(node, count), faults)
        return self._start_host(RewardHost, name, node, *more, max_concurrency=max_concurrency)

    def _start_host(
        self, kind: type, name: str, node: int, *more: Any, max_concurrency: int = 1
    ) -> Any:
        """A host on a node of the policy's pool, which runs so many calls at a time: if several, as
        their shards come."""
        log = self._settings.logs / f"{name.replace(' ', '-')}.log"
        options = ray.remote(kind).options(
            name=self._actor_name(name),
            num_cpus=1,
            max_concurrency=max_concurrency,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=self._on_node(self.plan.policy_pool, node),
            **self._site.worker_options,
        )
        return options.remote(self.job, log, self._settings.python_path, *more)

    def _on_node(self, pool: Pool, node: int) -> PlacementGroupSchedulingStrategy:
        return PlacementGroupSchedulingStrategy(
            self._reserved[pool.name], placement_group_bundle_index=node
        )

    def _actor_name(self, worker: str) -> str:
        """What Ray calls it when it dies."""
        return f"{worker} in {self.incarnation}"
