"""Ways to part things into sets, and devices among them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import comb
from typing import TypeVar

T = TypeVar("T")


def set_partitions(things: Sequence[T]) -> Iterator[tuple[tuple[T, ...], ...]]:
    """All ways to part things into sets; in each, things and sets are in their first order.

    There are Bell's number of them: 1, 2, 5, 15, 52, 203 for one thing and more.
    """
    if not things:
        yield ()
        return
    *others, last = things
    for partition in set_partitions(others):
        for number, part in enumerate(partition):
            yield (*partition[:number], (*part, last), *partition[number + 1 :])
        yield (*partition, (last,))


def compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """All ways to write a number as a sum of so many positive ones, in every order."""
    if parts == 0 or total < parts:
        if parts == total:
            yield ()
        return
    for cuts in combinations(range(1, total), parts - 1):
        bounds = (0, *cuts, total)
        yield tuple(end - begin for begin, end in zip(bounds, bounds[1:], strict=False))


def count_compositions(total: int, parts: int) -> int:
    """How many these are."""
    if parts == 0 or total < parts:
        return int(parts == total)
    return comb(total - 1, parts - 1)
