"""What makes one plan better than another: how many devices it takes, and how long its steps are.
Pure.

Parts of pools: the numbers of devices that are compared where a plan may take fewer. Pure.

Of a pool within a node: the divisors of its devices, and powers of two. Of several nodes whole
ones: every number up to eight, above those whose binary form has three leading digits and zeros
(10, 12, 14, 16, 20, 24, ...), which are at most a quarter apart, and all. Of several pools every
combination, also without some of them; with many pools not every size of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import inf, nextafter, prod
from typing import Protocol

from rlhf_api.plan import Pool
from rlhf_api.spec.objective import ObjectiveType, PlacementObjective

Score = tuple[float, float]
"""Of a plan: less is better. It never falls where steps get longer on as many devices."""
WORST: Score = (inf, inf)
"""Of what is no plan."""


class Objective(Protocol):
    """What a plan is to be best at."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """Of a plan on so many devices with such steps."""

    def below_seconds(self, devices: int, best: Score) -> float:
        """Steps on so many devices score better than the best only if they take less than this."""


@dataclass(frozen=True)
class LeastStepTime:
    """Shortest steps, on any number of devices."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        return best[0]


@dataclass(frozen=True)
class LeastDeviceTime:
    """Least devices x seconds of a step."""

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`."""
        return (devices * step_seconds, 0.0) if step_seconds < inf else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`; rounded up, so that steps that take as long score no better."""
        return nextafter(best[0] / devices, inf)


@dataclass(frozen=True)
class FewestDevices:
    """Fewest devices on which a step takes so long at most; then shortest steps."""

    max_step_seconds: float

    def score(self, devices: int, step_seconds: float) -> Score:
        """See `Objective`; steps that take longer are no plans."""
        return (devices, step_seconds) if step_seconds <= self.max_step_seconds else WORST

    def below_seconds(self, devices: int, best: Score) -> float:
        """See `Objective`."""
        fewest, seconds = best
        if devices > fewest:
            return 0.0
        return seconds if devices == fewest else nextafter(self.max_step_seconds, inf)


def objective_of(asked: PlacementObjective) -> Objective:
    """An objective that the manifest asks for."""
    if asked.type is ObjectiveType.FEWEST_DEVICES:
        assert asked.max_step_seconds is not None, "a rule of the manifest"
        return FewestDevices(asked.max_step_seconds)
    return LeastDeviceTime() if asked.type is ObjectiveType.DEVICE_TIME else LeastStepTime()


LEADING_DIGITS = 3
"""Binary digits of a number of nodes that may be other than zero, from the first on."""

MOST_SIZES = 256
"""That are compared: each gets a bound in some milliseconds, and some are searched."""

Pools = tuple[Pool, ...]


def pool_sizes(pool: Pool) -> tuple[Pool, ...]:
    """The parts of a pool, and the whole, ascending."""
    per_node = pool.devices_per_node
    within = [
        size for size in range(1, per_node + 1) if per_node % size == 0 or size.bit_count() == 1
    ]
    parts = [_part(pool, 1, size) for size in within]
    nodes = [count for count in range(2, pool.nodes) if _is_round(count)]
    if pool.nodes > 1:
        nodes.append(pool.nodes)
    return (*parts, *(_part(pool, count, per_node) for count in nodes))


def sizes_of(pools: Sequence[Pool], most: int = MOST_SIZES) -> tuple[Pools, ...]:
    """Choices of parts of pools, those of fewer devices first; pools may be left out.

    Args:
        pools: as they are.
        most: choices. Where there would be more, every second part of each pool is compared, or
            every fourth, and so on; the whole always; and in the end pools are taken whole.
    """
    sizes = [pool_sizes(pool) for pool in pools]
    while prod(1 + len(each) for each in sizes) > most and any(len(each) > 1 for each in sizes):
        sizes = [each[::-1][::2][::-1] for each in sizes]
    if 2 ** len(pools) > most:
        return (tuple(pools),)
    choices = product(*((None, *each) for each in sizes))
    found = [tuple(part for part in choice if part is not None) for choice in choices]
    return tuple(sorted(filter(None, found), key=num_devices))


def num_devices(pools: Sequence[Pool]) -> int:
    """Devices of all of them."""
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
    return count >> zeros << zeros == count
