"""Sizes of the pools that are compared, and the objectives that compare them. Pure.

Within a node, the sizes of a pool are the divisors of its devices and powers of two. With several
nodes only full nodes are used: every number up to eight; above, numbers whose binary form has three
leading digits and zeros (10, 12, 14, 16, 20, 24, ...), which are at most a quarter apart; and all.
Several pools combine in every way, also without some of them; with many pools not every size of
each is compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, nextafter, prod
from typing import Protocol

from rlhf_api.plan import Pool
from rlhf_api.spec.objective import ObjectiveType, PlacementObjective

# Score of a plan; lower is better. On a number of devices it never falls as steps get longer.
Score = tuple[float, float]
# Score of a missing plan.
WORST: Score = (inf, inf)


class Objective(Protocol):
    """A criterion that plans are compared by."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """Score a plan by its number of devices and its step time."""

    def below_seconds(self, devices: int, best: Score) -> float:
        """The step time below which a plan on `devices` scores better than the best."""


@dataclass(frozen=True)
class MinStepTime:
    """Shortest steps, on any number of devices."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        return best[0]


@dataclass(frozen=True)
class MinDeviceTime:
    """Least devices x seconds of a step."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (devices * step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        # The quotient may be rounded down. The next number up keeps plans that score better by less
        # than that.
        return nextafter(best[0] / devices, inf)


@dataclass(frozen=True)
class FewestDevices:
    """Fewest devices on which a step keeps a limit; then shortest steps."""

    max_step_seconds: float

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`; steps that take longer are no plans."""
        return (devices, step_seconds) if step_seconds <= self.max_step_seconds else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        min_devices, seconds = best
        if devices > min_devices:
            return 0.0  # more devices score worse, however short the step
        # Fewer devices score better with any step that keeps the limit, the limit included.
        return seconds if devices == min_devices else nextafter(self.max_step_seconds, inf)


def objective_of(requested: PlacementObjective) -> Objective:
    """An objective that the manifest asks for."""
    if requested.type is ObjectiveType.FEWEST_DEVICES:
        assert requested.max_step_seconds is not None, "a rule of the manifest"
        return FewestDevices(requested.max_step_seconds)
    return MinDeviceTime() if requested.type is ObjectiveType.DEVICE_TIME else MinStepTime()


# Leading binary digits of a number of nodes that need not be zero.
LEADING_DIGITS = 3

# Limit of compared sizes: each gets a bound in some milliseconds, and some are searched.
MAX_SIZES = 256

Pools = tuple[Pool, ...]


def pool_sizes(pool: Pool) -> tuple[Pool, ...]:
    """The sizes of a pool, ascending, up to the full pool."""
    per_node = pool.devices_per_node
    within = [
        size for size in range(1, per_node + 1) if per_node % size == 0 or size.bit_count() == 1
    ]
    parts = [_part(pool, 1, size) for size in within]
    nodes = [count for count in range(2, pool.nodes) if _is_round(count)]
    if pool.nodes > 1:
        nodes.append(pool.nodes)
    return (*parts, *(_part(pool, count, per_node) for count in nodes))


def pool_subsets(pools: Sequence[Pool], max_sizes: int = MAX_SIZES) -> tuple[Pools, ...]:
    """Choices of a size for each pool, fewest devices first; pools may be left out.

    Args:
        pools: the full pools.
        max_sizes: limit of choices. If there are more, only every second size of each pool is
            compared, or every fourth, and so on; the full size always. In the end only full pools
            are compared.
    """
    sizes = [pool_sizes(pool) for pool in pools]
    while prod(1 + len(size) for size in sizes) > max_sizes and any(
        len(size) > 1 for size in sizes
    ):
        # Every second size from the end, so that the full pool stays.
        sizes = [size[::-1][::2][::-1] for size in sizes]
    # Each pool has one size left, and to use or leave out each is still too much to compare.
    if 2 ** len(pools) > max_sizes:
        return (tuple(pools),)
    # None leaves a pool out.
    choices = product(*((None, *size) for size in sizes))
    sizes_of_pools = [tuple(part for part in choice if part is not None) for choice in choices]
    return tuple(sorted(filter(None, sizes_of_pools), key=num_devices))


def num_devices(pools: Sequence[Pool]) -> int:
    """Devices of all pools."""
    return sum(pool.num_devices for pool in pools)


def describe_pools(pools: Sequence[Pool]) -> str:
    """Parts of pools for people: `2 x 8 of pool a`."""
    return " and ".join(
        f"{pool.nodes} x {pool.devices_per_node} of pool {pool.name}" for pool in pools
    )


def _part(pool: Pool, nodes: int, per_node: int) -> Pool:
    return pool.model_copy(update={"nodes": nodes, "devices_per_node": per_node})


def _is_round(count: int) -> bool:
    zeros = max(0, count.bit_length() - LEADING_DIGITS)
    # Shifting clears the low bits.
    return count >> zeros << zeros == count
