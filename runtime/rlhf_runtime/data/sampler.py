"""Selects the rows of a step: a pure function of the step's number.

It has no state to save: a resumed job trains on the same rows as an uninterrupted one.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.int64]


def rows_for_step(
    step: int, num_rows: int, prompts_per_step: int, shuffle: bool, seed: int
) -> Order:
    """Return the rows of a step: int64, shape [prompts_per_step].

    Steps count from 0 and pass through epochs of `num_rows` rows; each epoch has every row once. A
    batch may begin in one epoch and end in the next; it never has a row twice. Without shuffle
    every epoch has the order of the data; with it `seed` and the epoch determine the order.

    Raises:
        ValueError: step or seed is negative, or there are more prompts per step than rows.
    """
    if step < 0 or seed < 0 or not 0 < prompts_per_step <= num_rows:
        raise ValueError(
            f"no such batch: got step {step}, seed {seed}, {prompts_per_step} prompts of "
            f"{num_rows} rows, allowed step and seed of at least 0 and 1 to {num_rows} prompts"
        )
    position = step * prompts_per_step
    parts: list[Order] = []
    missing = prompts_per_step
    # At most two epochs: prompts_per_step <= num_rows.
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
    """Return the order of an epoch; the batch that straddles its beginning repeats no row."""
    if not shuffle:
        return np.arange(num_rows, dtype=np.int64)
    # Swapping needs an unaffected part of the epoch between its first and its last batch.
    if num_rows < 2 * prompts_per_step:
        return _small_epoch_order(epoch, num_rows, prompts_per_step, seed)
    order = permutation(num_rows, seed, epoch)
    tail = epoch * num_rows % prompts_per_step
    if tail == 0:
        return order
    head = prompts_per_step - tail
    before = permutation(num_rows, seed, epoch - 1)[num_rows - tail :]
    return without_repeats(order, before, head, prompts_per_step)


def _small_epoch_order(epoch: int, num_rows: int, prompts_per_step: int, seed: int) -> Order:
    """Return the order of an epoch of fewer rows than two batches."""
    # Epochs form groups that end together with a batch and share one order. A batch is then a
    # section of a circle that is at least as long as the batch, so it repeats no row.
    group = prompts_per_step // math.gcd(num_rows, prompts_per_step)
    return permutation(num_rows, seed, epoch // group)


def without_repeats(order: Order, before: Order, head: int, reach: int) -> Order:
    """Swap rows of `before` out of the first `head` positions, with positions from head to
    `reach`."""
    # `reach` is the batch size, so each conflict has a partner: of the reach - head = len(before)
    # positions at most len(before) - conflicts hold rows of `before`. The last positions of the
    # epoch are never swapped: the next epoch computes them without this swap.
    repeats = np.isin(order[:reach], before)
    conflicts = np.flatnonzero(repeats[:head])
    partners = head + np.flatnonzero(~repeats[head:])[: len(conflicts)]
    swapped = order.copy()
    swapped[conflicts], swapped[partners] = order[partners], order[conflicts]
    return swapped


def permutation(num_rows: int, *key: int) -> Order:
    """Return an order of rows that numbers determine, such as a seed and an epoch."""
    # PCG64 by name: numpy's default generator may change, and resumed runs must not.
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(list(key))))
    return generator.permutation(num_rows).astype(np.int64, copy=False)
