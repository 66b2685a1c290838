"""World: the process group of a pool, from which meshes are cut.

Owned by the rank's process. Rank 0 serves the store at which the others meet, on a port that the
operating system chooses: a fixed port could be in use.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}
"""Collective libraries by device type; control messages of a GPU world use gloo."""


def serve_store(address: str, size: int, timeout_seconds: float) -> TCPStore:
    """Serve the store of a world from this process, on a free port."""
    return TCPStore(
        address, 0, size, True, datetime.timedelta(seconds=timeout_seconds), wait_for_workers=False
    )


def reach_store(address: str, port: int, size: int, timeout_seconds: float) -> TCPStore:
    """Connect to the store of another process."""
    return TCPStore(address, port, size, False, datetime.timedelta(seconds=timeout_seconds))


@dataclass(frozen=True)
class World:
    """All ranks of one pool; this one computes on `device`."""

    rank: int
    size: int
    device: torch.device
    timeout: datetime.timedelta
    """Time-out of collectives."""

    @staticmethod
    def join(
        rank: int, size: int, store: Store, device: torch.device, timeout_seconds: float
    ) -> World:
        """Join the world: returns once all ranks have joined, or raises after the time-out."""
        timeout = datetime.timedelta(seconds=timeout_seconds)
        dist.init_process_group(
            BACKENDS[device.type], store=store, rank=rank, world_size=size, timeout=timeout
        )
        return World(rank, size, device, timeout)

    def make_group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of some ranks; the world's own if they are all. Collective over the world."""
        everyone = dist.group.WORLD
        assert everyone is not None
        # A group costs connections and memory: the world's own serves as well.
        if len(ranks) == self.size:
            return everyone
        group: dist.ProcessGroup = dist.new_group(list(ranks), timeout=self.timeout)
        return group

    def close(self) -> None:
        """Leave the world and destroy its groups."""
        if dist.is_initialized():
            dist.destroy_process_group()
