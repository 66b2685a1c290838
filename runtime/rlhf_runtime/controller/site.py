"""Where a job's workers live: the one difference between `rlhf run` and `rlhf drive`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import ray
from ray.util.placement_group import PlacementGroup

from rlhf_api.plan import Pool
from rlhf_runtime.controller.local_ray import require_local_ray, start_local_ray, stop_local_ray
from rlhf_runtime.controller.nodes import node_bundles
from rlhf_runtime.controller.reservation import NotReserved, reserve
from rlhf_runtime.errors import NotEnoughResources
from rlhf_runtime.forkserver.client import ForkServer, unload, wait_until_ready
from rlhf_runtime.hooks import Hook
from rlhf_runtime.patience import Patience

RESERVE_SECONDS = 60.0
"""How long a machine's Ray may take to set its devices aside; a moment where they are there."""


ReservedPool = tuple[Pool, PlacementGroup]
"""A pool, and its nodes, one bundle each."""


class Site(Protocol):
    """A Ray instance and its nodes."""

    @property
    def one_machine(self) -> bool:
        """Whether all workers are on the driver's machine: then nothing listens to others."""

    def open(self, pools: Sequence[Pool]) -> None:
        """Be connected to Ray; nobody else's workers are there."""

    def require_ray(self) -> None:
        """Raise where Ray itself has gone, and workers are waited for in vain."""

    def report_alive(self) -> None:
        """The driver lives: called every few seconds while workers compute."""

    def reserve(self, pools: Sequence[Pool]) -> Iterator[ReservedPool]:
        """Set a bundle of each node aside for an incarnation of workers, pool by pool."""

    @property
    def worker_options(self) -> Mapping[str, Any]:
        """Of Ray's actors: what lets fork servers make them."""

    def import_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Have what workers import in memory on each of the reserved nodes, to fork them from.

        What `look`, which is called while that goes on, raises ends the wait.
        """

    def unload_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Give their memory back, until workers are wanted again."""

    def close(self) -> None:
        """Leave Ray; safe without `open`."""


class OneMachine:
    """This machine: a Ray instance that lives as long as the command."""

    one_machine = True
    worker_options: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, fork_server: ForkServer) -> None:
        """The server, which forks all workers, stays its owner's to close, after this."""
        self._server = fork_server

    def open(self, pools: Sequence[Pool]) -> None:
        """Start Ray."""
        bundles = [bundle for pool in pools for bundle in node_bundles(pool)]
        start_local_ray(int(sum(bundle["CPU"] for bundle in bundles)), self._server.name)

    def import_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Wait for the fork server; where that fails, workers import by themselves and say why."""
        self._server.revive()
        wait_until_ready(self._server.name, poll)

    def unload_libraries(self, nodes: Sequence[ReservedPool], poll: Hook) -> None:
        """Let the fork server forget."""
        unload(self._server.name, poll)

    def require_ray(self) -> None:
        """Look after Ray's own processes.

        Raises:
            RayFailed: one has died.
        """
        require_local_ray()

    def report_alive(self) -> None:
        """Nobody asks on one machine: who started the driver sees it."""

    def reserve(self, pools: Sequence[Pool]) -> Iterator[ReservedPool]:
        """Set the devices aside.

        Raises:
            RayFailed: Ray has gone.
            NotEnoughResources: Ray does not see as many.
        """
        self.require_ray()
        patience = Patience(RESERVE_SECONDS, lambda _text: None, self.require_ray)
        for pool in pools:
            try:
                yield pool, reserve(node_bundles(pool), patience, lambda: "")
            except NotReserved:
                raise NotEnoughResources(
                    "the devices of the plan are not there: got "
                    f"{ray.available_resources()} from Ray, needed {node_bundles(pool)}; look at "
                    "CUDA_VISIBLE_DEVICES, or ask for fewer with --devices"
                ) from None

    def close(self) -> None:
        """End every process that Ray started."""
        stop_local_ray()
