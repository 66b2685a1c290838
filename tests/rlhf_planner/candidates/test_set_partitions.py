"""Ways to part things into sets, and devices among them."""

from __future__ import annotations

from itertools import product

import pytest

from rlhf_planner.candidates.placements import (
    compositions,
    count_compositions,
    set_partitions,
)


@pytest.mark.parametrize(("things", "bell"), [(0, 1), (1, 1), (2, 2), (3, 5), (4, 15), (6, 203)])
def test_there_are_bells_number_of_partitions(things: int, bell: int) -> None:
    found = list(set_partitions(range(things)))
    assert len(found) == len({frozenset(map(frozenset, sets)) for sets in found}) == bell
    assert all(sorted(sum(sets, ())) == list(range(things)) for sets in found)


@pytest.mark.parametrize("total", range(7))
@pytest.mark.parametrize("parts", range(5))
def test_compositions_are_all_ways_to_write_a_sum(total: int, parts: int) -> None:
    naive = {sizes for sizes in product(range(1, total + 1), repeat=parts) if sum(sizes) == total}
    found = list(compositions(total, parts))
    assert set(found) == naive
    assert len(found) == len(naive) == count_compositions(total, parts)
