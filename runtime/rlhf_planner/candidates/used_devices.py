"""Parts of pools that a plan may use, while all other devices idle. Pure.

Not every number of devices divides a batch, heads or layers, so fewer devices may be faster. As the
parts of a pool are all smaller pools, the fastest plan on more devices is never slower. A part is
the first devices of a node, or the first nodes of several. Of more than MAX_NODES nodes it has full
blocks of the pool's placements, and most of them. As blocks divide a pool, one of 17 nodes has few:
so there are also parts with blocks of their own, one node fewer and the one with most blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil

from rlhf_api.plan import Pool

# Limit of nodes up to which every number of them is a part.
MAX_NODES = 8
# Limit of the share of a larger pool that may idle: bounds of more parts would double the time of a
# search, and the larger a pool, the less a number of nodes is odd.
MAX_IDLE_SHARE = 1 / 8


@dataclass(frozen=True)
class PoolsPart:
    """The devices that a plan uses."""

    pools: tuple[Pool, ...]
    block_devices: Mapping[str, int] | None
    """Devices of a block, by pool. None: as `placements` chooses for these pools alone."""


def smaller_parts(pools: Sequence[Pool], block_devices: Mapping[str, int]) -> Iterator[PoolsPart]:
    """Parts of all pools, without that of all devices; every pool keeps some.

    Args:
        pools: all devices.
        block_devices: devices of a block of placements on all of them, by pool.
    """
    blocks = block_devices if any(pool.nodes > MAX_NODES for pool in pools) else None
    for part in product(*(_parts(pool, block_devices[pool.name]) for pool in pools)):
        if any(one != full for one, full in zip(part, pools, strict=True)):
            yield PoolsPart(part, blocks)


def parts_with_own_blocks(
    pools: Sequence[Pool], blocks_of: Callable[[Sequence[Pool]], Mapping[str, int]]
) -> Iterator[PoolsPart]:
    """Parts of a large pool with blocks of their own: one node fewer, and of those with most
    devices the one with most blocks. None of several pools.

    Args:
        pools: all devices.
        blocks_of: returns the devices of a block of placements on some pools, by pool.
    """
    pool, *others = pools
    if others or pool.nodes <= MAX_NODES:
        return
    least = ceil(pool.nodes * (1 - MAX_IDLE_SHARE))
    parts = [pool.model_copy(update={"nodes": n}) for n in range(pool.nodes - 1, least - 1, -1)]
    # The first of equal ones has most devices.
    finest = max(parts, key=lambda part: part.num_devices // blocks_of([part])[part.name])
    for part in dict.fromkeys((parts[0].nodes, finest.nodes)):
        yield PoolsPart((pool.model_copy(update={"nodes": part}),), None)


def _parts(pool: Pool, block: int) -> Iterator[Pool]:
    """A pool and its parts, most devices first."""
    yield pool
    is_small, per_node = pool.nodes <= MAX_NODES, pool.devices_per_node
    least = 1 if is_small else ceil(pool.nodes * (1 - MAX_IDLE_SHARE))
    for nodes in range(pool.nodes - 1, least - 1, -1):
        # All parts of a large pool share its blocks, so that few numbers of devices are priced.
        if is_small or nodes * per_node % block == 0:
            yield pool.model_copy(update={"nodes": nodes})
    for size in range(per_node - 1, 0, -1) if is_small else ():
        yield pool.model_copy(update={"nodes": 1, "devices_per_node": size})
