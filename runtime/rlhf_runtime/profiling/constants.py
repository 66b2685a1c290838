"""Measures the memory's bandwidth and collectives."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

from rlhf_runtime.profiling.timed_model import Clock
from rlhf_runtime.profiling.training import repeated

# Bytes of the measured copy; larger than caches.
COPIED_BYTES = 1 << 28
# Bytes of the measured collectives.
LARGE, SMALL = 1 << 26, 1 << 10


class LinkSeconds(NamedTuple):
    """Times of collectives between ranks of this machine."""

    bytes_per_second: float
    """Received by each rank in a large collective."""
    seconds: float
    """Duration of a small collective."""


def memory_bytes_per_second(clock: Clock, device: torch.device) -> float:
    """Bytes per second read and written by a copy within the memory."""
    source = torch.ones(COPIED_BYTES // 4, device=device)
    target = torch.empty_like(source)

    def copy() -> float:
        clock.mark()
        target.copy_(source)
        clock.mark()
        return clock.read()[0]

    return 2 * COPIED_BYTES / min(repeated(copy))


def link_seconds(clock: Clock, device: torch.device) -> LinkSeconds:
    """Mean of an all-gather and a reduce-scatter. Collective over all ranks of the world."""
    small = min(_collectives(SMALL, clock, device))
    large = min(_collectives(LARGE, clock, device))
    size = dist.get_world_size()
    return LinkSeconds((size - 1) / size * LARGE / max(large - small, 1e-9), small)


def _collectives(num_bytes: int, clock: Clock, device: torch.device) -> list[float]:
    size = dist.get_world_size()
    gathered = torch.zeros(num_bytes // 4 // size * size, device=device)
    own = torch.zeros(gathered.numel() // size, device=device)
    collectives: list[Callable[[], object]] = [
        lambda: dist.all_gather_into_tensor(gathered, own),
        lambda: dist.reduce_scatter_tensor(own, gathered),
    ]
    seconds = []
    for _ in range(6):
        total = 0.0
        for collective in collectives:
            dist.barrier()
            clock.mark()
            collective()
            clock.mark()
            total += clock.read()[0]
        seconds.append(total / len(collectives))
    # The first round warms up.
    return seconds[1:]
