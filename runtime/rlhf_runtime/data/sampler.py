"""Which rows a step trains on: a pure function of the step's number.

There is no state to save. The step's number alone gives its rows, so a resumed job sees the rows
that an uninterrupted one would have seen.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.int64]


def rows_for_step(
    step: int, num_rows: int, prompts_per_step: int, shuffle: bool, seed: int
) -> Order:
    """Rows of the step with this number: int64, shape [prompts_per_step].

    Steps count from 0 and walk through epochs of `num_rows` rows; each epoch holds every row once.
    A batch may begin in one epoch and end in the next, and still never holds a row twice. Without
    shuffle every epoch has the order of the data; with it the order follows from `seed` and the
    epoch.

    Raises:
        ValueError: a negative step or seed, or more prompts per step than rows.
    """
    if step < 0 or seed < 0 or not 0 < prompts_per_step <= num_rows:
        raise ValueError(
            f"no such batch: got step {step}, seed {seed}, {prompts_per_step} prompts of "
            f"{num_rows} rows, allowed step and seed of at least 0 and 1 to {num_rows} prompts"
        )
    position = step * prompts_per_step
    parts: list[Order] = []
    missing = prompts_per_step
    while missing:
        epoch, start = divmod(position, num_rows)
        part = _epoch_order(epoch, num_rows, prompts_per_step, shuffle, seed)[start:][:missing]
        parts.append(part)
        position += len(part)
        missing -= len(part)
    return np.concatenate(parts)


def _epoch_order(
    epoch: int, num_rows: int, prompts_per_step: int, shuffle: bool, seed: int
) -> Order:
    """The order of an epoch, in which the batch that straddles its beginning repeats no row."""
    if not shuffle:
        return np.arange(num_rows, dtype=np.int64)
    if num_rows < 2 * prompts_per_step:
        return _small_epoch_order(epoch, num_rows, prompts_per_step, seed)
    order = _permutation(epoch, num_rows, seed)
    tail = epoch * num_rows % prompts_per_step
    if tail == 0:
        return order
    head = prompts_per_step - tail
    before = _permutation(epoch - 1, num_rows, seed)[num_rows - tail :]
    return _without_repeats(order, before, head, prompts_per_step)


def _small_epoch_order(epoch: int, num_rows: int, prompts_per_step: int, seed: int) -> Order:
    """An epoch of fewer rows than two batches.

    Epochs come in groups that end together with a batch, and share one order: a batch is then a
    stretch of a circle no longer than the circle.
    """
    group = prompts_per_step // math.gcd(num_rows, prompts_per_step)
    return _permutation(epoch // group, num_rows, seed)


def _without_repeats(order: Order, before: Order, head: int, reach: int) -> Order:
    """Swap rows of `before` out of the first `head` places, against places from head to `reach`.

    The places in reach are as many as a batch has, so there is a partner for each: of the
    reach - head = len(before) places at most len(before) - conflicts hold rows of `before`. The
    last places of the epoch are out of reach; the next epoch relies on them without knowing of the
    swap.
    """
    taken = np.isin(order[:reach], before)
    conflicts = np.flatnonzero(taken[:head])
    partners = head + np.flatnonzero(~taken[head:])[: len(conflicts)]
    swapped = order.copy()
    swapped[conflicts], swapped[partners] = order[partners], order[conflicts]
    return swapped


def _permutation(epoch: int, num_rows: int, seed: int) -> Order:
    """A random order of all rows, equal for equal arguments."""
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
    return generator.permutation(num_rows).astype(np.int64, copy=False)
