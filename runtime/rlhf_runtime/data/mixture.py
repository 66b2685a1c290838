"""Selects the rows of a step from several sources by their weights: pure in the step's number.

It has no state to save: how many rows a source has given before a step follows from the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.data.sampler import Order, permutation, without_repeats

# Maximum of steps after which the remainders of the sources' shares repeat. Shares whose
# denominators would need more are rounded.
MAX_PERIOD = 1_000_000
# Fraction of a period between the offsets of two steps: multiples of it spread most evenly.
_GOLDEN = (math.sqrt(5) - 1) / 2


class Mixture:
    """Numbers of prompts that each source gives to each step.

    A step has floor(share) or ceil(share) prompts of a source, where share is promptsPerStep times
    its part of all weights. Which sources get the ceiling is decided by systematic sampling
    (Madow, 1949): the remainders are sections of a line, on which every step has its own offset,
    and points at distance 1 from each other mark the sources. All offsets occur once in a period,
    so that each period has the exact shares.
    """

    def __init__(self, weights: Sequence[float], prompts_per_step: int) -> None:
        """Divide a step's prompts by weights, of which each is over 0."""
        exact = [Fraction(repr(float(weight))) for weight in weights]
        shares = [prompts_per_step * weight / sum(exact) for weight in exact]
        self._whole = np.asarray([math.floor(share) for share in shares], dtype=np.int64)
        remainders = [share - math.floor(share) for share in shares]
        exact_period = math.lcm(*(remainder.denominator for remainder in remainders))
        self._period = min(exact_period, MAX_PERIOD)
        self._parts = _round(remainders, self._period)
        self._ends = np.cumsum(self._parts)
        self._stride = _coprime_near(_GOLDEN * self._period, self._period)

    @property
    def largest(self) -> Order:
        """Maximum of each source's prompts in a step: int64 [sources]."""
        return self._whole + (self._parts > 0)

    def counts(self, step: int) -> Order:
        """Return each source's prompts of a step, from 0: int64 [sources]."""
        counts: Order = self._whole + self._chosen(np.asarray([step]))[0]
        return counts

    def before(self, step: int) -> Order:
        """Return each source's prompts of all steps before one: int64 [sources]."""
        periods, rest = divmod(step, self._period)
        in_period: Order = self._chosen(np.arange(rest)).sum(axis=0)
        return step * self._whole + periods * self._parts + in_period

    def _chosen(self, steps: Order) -> Order:
        """Return 1 for the sources that get the ceiling, else 0: int64 [steps, sources]."""
        offsets = (steps % self._period) * self._stride % self._period
        # Number of points before the end of each section; a point lies on the section's begin.
        points = -((offsets[:, None] - self._ends) // self._period)
        return np.diff(points, axis=1, prepend=0)


def mixed_rows(
    step: int, mixture: Mixture, sizes: Sequence[int], shuffle: bool, seed: int
) -> Order:
    """Return the rows of a step: int64 [prompts], numbers in the sources' joint table.

    Each source passes through epochs of its own, and begins the next one when it has given all its
    rows. A step never has a row twice. The sources' rows are spread evenly over the step, so that
    each mini-batch has some of all.

    Args:
        step: from 0.
        mixture: of the sources.
        sizes: rows of each source, at least its largest number of prompts in a step.
        shuffle: True: every epoch has a new order.
        seed: it determines the orders.

    Raises:
        ValueError: a source has fewer rows than a step may take.
    """
    begins, counts, largest = mixture.before(step), mixture.counts(step), mixture.largest
    if any(size < most for size, most in zip(sizes, largest, strict=True)):
        raise ValueError(
            f"a source has too few rows: got {list(sizes)}, allowed at least {largest.tolist()}"
        )
    rows, places, first = list[Order](), list[NDArray[np.float64]](), 0
    for index, size in enumerate(sizes):
        count = int(counts[index])
        key = (seed, index + 1) if shuffle else None
        rows.append(first + _span(int(begins[index]), count, size, int(largest[index]), key))
        places.append((np.arange(count) + 0.5) / max(1, count))
        first += size
    return np.concatenate(rows)[np.argsort(np.concatenate(places), kind="stable")]


def _span(
    begin: int, count: int, num_rows: int, largest: int, key: tuple[int, int] | None
) -> Order:
    """Return some rows of one source, from a position on.

    Args:
        begin: number of its rows that came before, in all epochs.
        count: number of rows.
        num_rows: rows of an epoch.
        largest: maximum of `count` in any step.
        key: it determines the order; None: that of the data.
    """
    parts: list[Order] = []
    while count:
        epoch, start = divmod(begin, num_rows)
        part = _epoch_order(epoch, num_rows, largest, key)[start:][:count]
        parts.append(part)
        begin += len(part)
        count -= len(part)
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _epoch_order(epoch: int, num_rows: int, largest: int, key: tuple[int, int] | None) -> Order:
    """Return the order of an epoch, whose first rows differ from the last ones of the epoch before:
    a step may have rows of both."""
    if key is None:
        return np.arange(num_rows, dtype=np.int64)
    seed, source = key
    shared = largest - 1
    # In a short epoch swaps would reach the rows that the next one compares with. With the same
    # order in all epochs a step is a section of a circle, which repeats no row.
    if num_rows < 3 * shared:
        return permutation(num_rows, seed, 0, source)
    order = permutation(num_rows, seed, epoch, source)
    if not epoch or not shared:
        return order
    last = permutation(num_rows, seed, epoch - 1, source)[num_rows - shared :]
    return without_repeats(order, last, shared, 2 * shared)


def _round(remainders: Sequence[Fraction], period: int) -> Order:
    """Return the remainders in parts of a period, with the same sum: int64 [sources]."""
    exact = [remainder * period for remainder in remainders]
    parts = [math.floor(part) for part in exact]
    lost = sum(exact) - sum(parts)
    by_loss = sorted(range(len(parts)), key=lambda index: parts[index] - exact[index])
    for index in by_loss[: int(lost)]:
        parts[index] += 1
    return np.asarray(parts, dtype=np.int64)


def _coprime_near(target: float, period: int) -> int:
    """Return a number from 1 on near a target that has no factor in common with a period."""
    number = max(1, round(target))
    while math.gcd(number, period) > 1:
        number += 1
    return number
