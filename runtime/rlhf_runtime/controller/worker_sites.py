"""Sites of a job's workers: the one difference between `rlhf run` and `rlhf drive`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup

from rlhf_api.plan import Pool
from rlhf_runtime.bounded_wait import BoundedWait
from rlhf_runtime.controller.local_ray import require_local_ray, start_local_ray, stop_local_ray
from rlhf_runtime.controller.nodes import node_bundles
from rlhf_runtime.controller.reservation import NotReserved, reserve
from rlhf_runtime.errors import NotEnoughResources
from rlhf_runtime.forkserver.client import ForkServer, unload, wait_until_ready
from rlhf_runtime.hooks import Hook

# Time limit for a machine's Ray to reserve its devices; normally a moment.
RESERVE_SECONDS = 60.0


# A pool, and its nodes, one bundle each.
ReservedPool = tuple[Pool, PlacementGroup]


class Site(Protocol):
    """A Ray instance and its nodes."""

    @property
    def one_machine(self) -> bool:
        """True if all workers are on the driver's machine: then nothing listens for other nodes."""

    def open(self, pools: Sequence[Pool]) -> None:
        """Connect to Ray, without workers of other drivers."""

    def require_ray(self) -> None:
        """Raise if Ray itself has died, so that waiting for workers is pointless."""

    def lost_nodes(self) -> str:
        """Describe the nodes of the last workers that exist no more, in a line; empty: none."""

    def report_alive(self) -> None:
        """Report that the driver is alive; called every few seconds while workers compute."""

    def reserve(self, pools: Sequence[Pool]) -> Iterator[ReservedPool]:
        """Reserve a bundle on each node for an incarnation of workers, pool by pool."""

    @property
    def worker_options(self) -> Mapping[str, Any]:
        """Options of Ray's actors that let fork servers make them."""

    def import_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Import the workers' libraries on each reserved node, to fork workers from them.

        `poll` is called meanwhile; an exception from it ends the wait.
        """

    def unload_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Free the libraries' memory until workers are needed again."""

    def close(self) -> None:
        """Leave Ray; also allowed without `open`."""


class OneMachine:
    """This machine: a Ray instance that lives as long as the command."""

    one_machine = True
    worker_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, fork_server: ForkServer) -> None:
        """Use a server that forks all workers. Its owner closes it, after this."""
        self._server = fork_server

    def open(self, pools: Sequence[Pool]) -> None:
        """Start Ray."""
        bundles = [bundle for pool in pools for bundle in node_bundles(pool)]
        start_local_ray(int(sum(bundle["CPU"] for bundle in bundles)), self._server.name)

    def import_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Wait for the fork server. If it fails, workers import by themselves and report the
        reason."""
        self._server.revive()
        wait_until_ready(self._server.name, poll)

    def unload_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Let the fork server drop its libraries."""
        unload(self._server.name, poll)

    def lost_nodes(self) -> str:
        """Return nothing: this machine is the only node."""
        return ""

    def require_ray(self) -> None:
        """Check Ray's own processes.

        Raises:
            RayFailed: one has died.
        """
        require_local_ray()

    def report_alive(self) -> None:
        """Do nothing: the user of the command sees the driver."""

    def reserve(self, pools: Sequence[Pool]) -> Iterator[ReservedPool]:
        """Reserve the devices.

        Raises:
            RayFailed: Ray has died.
            NotEnoughResources: Ray has fewer devices.
        """
        self.require_ray()
        wait = BoundedWait(RESERVE_SECONDS, lambda _text: None, self.require_ray)
        for pool in pools:
            try:
                yield pool, reserve(node_bundles(pool), wait, lambda: "")
            except NotReserved:
                raise NotEnoughResources(
                    "the devices of the plan are not there: got "
                    f"{ray.available_resources()} from Ray, needed {node_bundles(pool)}; look at "
                    "CUDA_VISIBLE_DEVICES, or ask for fewer with --devices"
                ) from None

    def close(self) -> None:
        """End every process that Ray started."""
        stop_local_ray()
