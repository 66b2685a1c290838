"""The existing Ray cluster of `rlhf drive`: connected, clean, and complete.

Pods of it may be replaced at any time: every start of workers waits for nodes.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlhf_api.plan import Pool
from rlhf_api.spec.resources import Device
from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.controller.node_fork_servers import start_fork_server, unload_fork_server
from rlhf_runtime.controller.nodes import cluster_bundles, missing_nodes
from rlhf_runtime.controller.reservation import NotReserved, reserve
from rlhf_runtime.controller.results import wait_for
from rlhf_runtime.controller.worker_sites import ReservedPool
from rlhf_runtime.errors import DirtyCluster, NodesMissing, RayUnreachable
from rlhf_runtime.forkserver import launcher
from rlhf_runtime.hooks import Hook

# Time limit for leftovers of an earlier driver to disappear.
CLEAN_SECONDS = 60.0
# Time limit for nodes if the manifest has no startDeadlineSeconds. A lost pod may need a new
# machine, and the machine the image.
NODES_SECONDS = 600.0
# Time limit for a raylet to accept a connection.
CONNECT_SECONDS = 3.0
NAMESPACE = "rlhf"
# Namespace of the actors that Ray's Jobs API keeps for submissions.
INTERNAL_NAMESPACE = "SUPERVISOR_ACTOR_RAY_NAMESPACE"
COUNTED_RESOURCES = ("CPU", "GPU")


@dataclass
class RayCluster:
    """A cluster that outlives this process."""

    address: str
    """Address of Ray's GCS; auto: from the environment."""
    nodes_deadline_seconds: float
    """Time limit for nodes."""
    report: Callable[[str], None]
    """Called with messages about waits."""
    check_stop: Hook
    """Raises if the driver is to end; called during waits."""
    heartbeat: Hook
    """Called every few seconds while workers compute."""
    _nodes: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Nodes of the last workers: addresses of their raylets by id."""
    one_machine = False

    @property
    def worker_options(self) -> Mapping[str, Any]:
        """Actor options: the fork server makes the workers."""
        return {"runtime_env": {"py_executable": shlex.join(launcher.command())}}

    def import_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Start the fork servers of nodes that have none, and wait for all.

        They outlive the driver, and end with the raylet of their node.
        """
        wait_for(_on_nodes(start_fork_server, nodes), poll)

    def unload_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Let the fork servers drop their libraries."""
        wait_for(_on_nodes(unload_fork_server, nodes), poll)

    def open(self, pools: Sequence[Pool]) -> None:
        """Connect, and wait until nothing of an earlier driver is left.

        Raises:
            RayUnreachable: Ray does not answer, or rejects the token.
            DirtyCluster: something is left for too long.
        """
        self._connect()
        obstacle = self._wait(CLEAN_SECONDS, "waiting for an earlier driver's end").until_free(
            cluster_leftovers
        )
        if obstacle:
            raise DirtyCluster(
                f"an earlier driver's workers are still in the cluster: got {obstacle} after "
                f"{CLEAN_SECONDS:g} s, allowed none; delete the cluster's worker pods, or the "
                "whole cluster: the job goes on from its newest checkpoint"
            )

    def report_alive(self) -> None:
        """Report to the operator that the driver is alive."""
        self.heartbeat()

    def require_ray(self) -> None:
        """Do nothing: Ray ends a driver without a head, and the operator handles that."""

    def lost_nodes(self) -> str:
        """Describe the nodes of the last workers whose raylets have ended."""
        try:
            living = _living_nodes()
        except RayError:  # Ray itself is lost: it ends this process
            return ""
        suspects = [self._nodes[id] for id in self._nodes if id in living]
        lost = [self._nodes[id] for id in self._nodes if id not in living]
        # Ray itself notices a death only after many seconds.
        with ThreadPoolExecutor() as threads:
            answers = threads.map(_listens, suspects)
            lost += [node for node, answer in zip(suspects, answers, strict=True) if not answer]
        return ", ".join(sorted(host for host, _ in lost))

    def reserve(self, pools: Sequence[Pool]) -> Iterator[ReservedPool]:
        """Reserve the nodes of each pool as soon as they exist.

        Raises:
            NodesMissing: they do not exist before a deadline for all pools.
        """
        deadline = time.monotonic() + self.nodes_deadline_seconds
        for pool in pools:
            remaining = max(0.0, deadline - time.monotonic())
            wait = self._wait(remaining, f"waiting for nodes of pool {pool.name}")
            try:
                yield (
                    pool,
                    reserve(cluster_bundles(pool), wait, partial(self._missing_nodes, pool)),
                )
            except NotReserved as error:
                raise NodesMissing(
                    f"nodes of pool {pool.name} are missing: got {error} after "
                    f"{self.nodes_deadline_seconds:g} s; look at the events of the cluster's "
                    "pods (no room, image, quota), or ask for less in "
                    "resources.nodePools; startDeadlineSeconds sets how long they are waited for"
                ) from None
        self._nodes = _living_nodes()

    @staticmethod
    def _missing_nodes(pool: Pool) -> str:
        return missing_nodes(pool, ray.nodes())

    def close(self) -> None:
        """Leave the cluster; workers of this driver end."""
        ray.shutdown()

    def _connect(self) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ["RAY_IGNORE_UNHANDLED_ERRORS"] = "1"  # the driver says what a worker raised
        try:
            ray.init(
                address=self.address,
                namespace=NAMESPACE,
                log_to_driver=False,
                logging_level=logging.ERROR,
            )
        except (RayError, RuntimeError, OSError) as error:
            raise RayUnreachable(
                f"the Ray cluster does not take this driver: got {type(error).__name__}: {error} "
                f"at {self.address}; see whether its head runs, and RAY_ADDRESS, RAY_AUTH_MODE "
                "and RAY_AUTH_TOKEN"
            ) from error

    def _wait(self, seconds: float, what: str) -> BoundedWait:
        return BoundedWait(seconds, lambda text: self.report(f"{what}: {text}"), self.check_stop)


def _living_nodes() -> dict[str, tuple[str, int]]:
    """Return the addresses of the raylets that Ray counts as alive, by node."""
    return {
        node["NodeID"]: (node["NodeManagerAddress"], node["NodeManagerPort"])
        for node in ray.nodes()
        if node["Alive"]
    }


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _on_nodes(task: Callable[[Device], bool], nodes: Sequence[ReservedPool]) -> list[Any]:
    return [
        ray.remote(task)
        .options(
            num_cpus=0,
            max_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, node),
        )
        .remote(pool.device)
        for pool, group in nodes
        for node in range(pool.nodes)
    ]


def cluster_leftovers() -> str:
    """Describe what another driver has left in the cluster, in a line; empty: nothing.

    This driver must not have started anything yet. Resources may count as used a moment longer than
    their holder exists.
    """
    actors = [
        actor["name"].partition(" in ")[0]
        for actor in ray.util.list_named_actors(all_namespaces=True)
        if actor["namespace"] != INTERNAL_NAMESPACE
    ]
    groups = [
        group for group in ray.util.placement_group_table().values() if group["state"] != "REMOVED"
    ]
    # Only Ray's GCS is asked: neither a dashboard nor a worker is needed.
    total, free = ray.cluster_resources(), ray.available_resources()
    used = {name: total.get(name, 0.0) - free.get(name, 0.0) for name in COUNTED_RESOURCES}
    leftovers = [f"actor {name}" for name in sorted(actors)]
    leftovers += [f"{len(groups)} placement groups"] if groups else []
    leftovers += [
        f"{amount:g} {name} taken"
        for name, amount in used.items()
        if not math.isclose(amount, 0.0, abs_tol=1e-6)
    ]
    return ", ".join(leftovers)
