"""Which parts of pools are compared."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_planner.search.pool_size import (
    MAX_SIZES,
    describe_pools,
    num_devices,
    pool_sizes,
    pool_subsets,
)

from .searched_jobs import gpus


@pytest.mark.parametrize(
    ("per_node", "nodes", "expected"),
    [
        (1, 1, [(1, 1)]),
        (8, 1, [(1, 1), (1, 2), (1, 4), (1, 8)]),
        (6, 1, [(1, 1), (1, 2), (1, 3), (1, 4), (1, 6)]),
        (4, 3, [(1, 1), (1, 2), (1, 4), (2, 4), (3, 4)]),
        (1, 18, [(n, 1) for n in (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 18)]),
    ],
)
def test_parts_of_a_node_and_whole_nodes(
    per_node: int, nodes: int, expected: list[tuple[int, int]]
) -> None:
    found = [(part.nodes, part.devices_per_node) for part in pool_sizes(gpus(per_node, nodes))]
    assert found == expected


@given(st.integers(1, 16), st.integers(1, 1000))
def test_numbers_of_nodes_are_at_most_a_quarter_apart_and_few(per_node: int, nodes: int) -> None:
    pool = gpus(per_node, nodes)
    found = pool_sizes(pool)
    assert found[-1] == pool
    counts = [part.num_devices for part in found]
    assert counts == sorted(set(counts)) and len(counts) <= 45
    whole = [part.nodes for part in found if part.devices_per_node == per_node]
    assert all(more <= max(less + 1, 1.25 * less) for less, more in pairwise(whole))


@given(st.integers(1, 32), st.integers(1, 60))
def test_the_parts_of_a_part_are_parts_of_the_whole(per_node: int, nodes: int) -> None:
    """So a driver that plans for the part that its cluster has compares nothing new."""
    whole = pool_sizes(gpus(per_node, nodes))
    for part in whole:
        assert {*map(str, pool_sizes(part))} <= {*map(str, whole)}


def test_of_several_pools_every_combination_but_none() -> None:
    pools = (gpus(2, name="a"), gpus(4, name="b"))
    found = [{part.name: part.num_devices for part in parts} for parts in pool_subsets(pools)]
    assert len(found) == 3 * 4 - 1 and found[-1] == {"a": 2, "b": 4}
    assert {"b": 4} in found and {"a": 1, "b": 2} in found and {} not in found
    sizes = [num_devices(parts) for parts in pool_subsets(pools)]
    assert sizes == sorted(sizes)
    assert describe_pools(pool_subsets(pools)[-1]) == "1 x 2 of pool a and 1 x 4 of pool b"


def test_many_pools_are_compared_in_fewer_parts() -> None:
    """Every number is bounded, and everything that there is stays among them."""
    for count in range(1, 17):
        pools = tuple(gpus(8, 16, name=f"p{number}") for number in range(count))
        sizes = pool_subsets(pools)
        assert len(sizes) <= MAX_SIZES
        assert sizes[-1] == pools
    assert len(pool_subsets((gpus(8, 16),))) == len(pool_sizes(gpus(8, 16)))
