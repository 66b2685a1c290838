"""The memory's bandwidth, and what collectives take."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from rlhf_runtime.profiling.timed_model import Clock
from rlhf_runtime.profiling.training import repeated

COPIED_BYTES = 1 << 28
"""Larger than caches."""
LARGE, SMALL = 1 << 26, 1 << 10
"""Bytes of collectives."""


class LinkSeconds(NamedTuple):
    """Of collectives between ranks of this machine."""

    bytes_per_second: float
    """Received by each rank in a large one."""
    seconds: float
    """Of a small one."""


def memory_bytes_per_second(clock: Clock, device: torch.device) -> float:
    """Bytes read and written by a copy within the memory."""
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> float:
        clock.mark()
        target.copy_(source)
        clock.mark()
        return clock.read()[0]

    return 2 * COPIED_BYTES / min(repeated(copy))


def link_seconds(clock: Clock, device: torch.device) -> LinkSeconds:
    """Of an all-gather and a reduce-scatter, on average. Collective over all ranks of the world."""
    small = min(_collectives(SMALL, clock, device))
    large = min(_collectives(LARGE, clock, device))
    size = dist.get_world_size()
    return LinkSeconds((size - 1) / size * LARGE / max(large - small, 1e-9), small)


def _collectives(num_bytes: int, clock: Clock, device: torch.device) -> list[float]:
    size = dist.get_world_size()
    whole = torch.zeros(num_bytes // 4 // size * size, device=device)
    own = torch.zeros(whole.numel() // size, device=device)
    ways: list[Callable[[], object]] = [
        lambda: dist.all_gather_into_tensor(whole, own),
        lambda: dist.reduce_scatter_tensor(own, whole),
    ]
    found = []
    for _ in range(6):
        total = 0.0
        for way in ways:
            dist.barrier()
            clock.mark()
            way()
            clock.mark()
            total += clock.read()[0]
        found.append(total / len(ways))
    return found[1:]
