"""The process group of a pool: what meshes are cut of.

Owned by the rank's process. Rank 0 serves the store at which the others meet, on a port that the
operating system picks: no port is fixed, so none can be taken.
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
    """The store of a world, served by this process on a free port."""
    return TCPStore(
        address, 0, size, True, datetime.timedelta(seconds=timeout_seconds), wait_for_workers=False
    )


def reach_store(address: str, port: int, size: int, timeout_seconds: float) -> TCPStore:
    """The store that another process serves."""
    return TCPStore(address, port, size, False, datetime.timedelta(seconds=timeout_seconds))


@dataclass(frozen=True)
class World:
    """All ranks of one pool; rank r computes on `device`."""

    rank: int
    size: int
    device: torch.device
    timeout: datetime.timedelta
    """Longest wait for other ranks in a collective."""

    @staticmethod
    def join(
        rank: int, size: int, store: Store, device: torch.device, timeout_seconds: float
    ) -> World:
        """Enter the world: returns once all ranks have, or raises after the time-out."""
        timeout = datetime.timedelta(seconds=timeout_seconds)
        dist.init_process_group(
            BACKENDS[device.type], store=store, rank=rank, world_size=size, timeout=timeout
        )
        return World(rank, size, device, timeout)

    def make_group(self, ranks: Sequence[int]) -> dist.ProcessGroup:
        """A group of some ranks, or the one of all. Every rank of the world makes it."""
        everyone = dist.group.WORLD
        assert everyone is not None
        if len(ranks) == self.size:
            return everyone
        made: dist.ProcessGroup = dist.new_group(list(ranks), timeout=self.timeout)
        return made

    def close(self) -> None:
        """Leave the world."""
        if dist.is_initialized():
            dist.destroy_process_group()
