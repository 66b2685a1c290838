"""Parts of pools of which the other devices idle."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_planner.candidates.placements import block_sizes, placements
from rlhf_planner.candidates.used_devices import parts_with_own_blocks, smaller_parts

from ..search.searched_jobs import gpus, ppo


def sizes(*pools: Any, block: int = 1) -> list[tuple[tuple[int, int], ...]]:
    """Nodes and devices of a node, of each pool of each part."""
    parts = smaller_parts(pools, {pool.name: block for pool in pools})
    return [tuple((pool.nodes, pool.devices_per_node) for pool in part.pools) for part in parts]


def test_a_node_has_all_smaller_numbers_of_its_devices() -> None:
    assert sizes(gpus(4)) == [((1, 3),), ((1, 2),), ((1, 1),)]


def test_several_nodes_have_fewer_nodes_and_parts_of_one() -> None:
    assert sizes(gpus(2, 3)) == [((2, 2),), ((1, 2),), ((1, 1),)]


def test_several_pools_are_combined() -> None:
    found = sizes(gpus(2, name="a"), gpus(2, name="b"))
    assert found == [((1, 2), (1, 1)), ((1, 1), (1, 2)), ((1, 1), (1, 1))]


def test_many_nodes_have_full_blocks_and_most_devices() -> None:
    assert sizes(gpus(8, 128), block=64) == [((120, 8),), ((112, 8),)]
    (part, *_) = smaller_parts([gpus(8, 128)], {"pool": 64})
    assert part.block_devices == {"pool": 64}


@pytest.mark.parametrize("count", [3, 4, 6])
def test_one_more_device_has_all_placements_of_one_fewer(job: Any, count: int) -> None:
    fewer, more = ppo(job, gpus(count)), ppo(job, gpus(count + 1))
    with_idle = {
        str(placement)
        for part in smaller_parts(more.pools, block_sizes(more))
        for placement in placements(ppo(job, *part.pools), block_devices=part.block_devices)
    }
    assert {str(placement) for placement in placements(fewer)} <= with_idle


@pytest.mark.parametrize("nodes", [8, 9, 12, 16, 24])
def test_one_more_node_has_all_placements_of_one_fewer(job: Any, nodes: int) -> None:
    fewer, more = gpus(8, nodes), gpus(8, nodes + 1)
    parts = parts_with_own_blocks([more], lambda pools: block_sizes(ppo(job, *pools)))
    first = next(iter(parts))
    assert first.pools == (fewer,) and first.block_devices is None


def test_a_pool_of_17_nodes_keeps_the_blocks_of_16() -> None:
    def blocks(pools: Any) -> Any:
        return {pool.name: {17: 136, 16: 16, 15: 24}[pool.nodes] for pool in pools}

    (only,) = parts_with_own_blocks([gpus(8, 17)], blocks)
    assert [pool.nodes for pool in only.pools] == [16]


def test_the_part_with_most_blocks_is_kept() -> None:
    def blocks(pools: Any) -> Any:
        return {pool.name: 8 if pool.nodes == 16 else pool.num_devices for pool in pools}

    parts = parts_with_own_blocks([gpus(8, 18)], blocks)
    assert [part.pools[0].nodes for part in parts] == [17, 16]


def test_small_and_several_pools_have_no_parts_with_own_blocks() -> None:
    def blocks(pools: Any) -> Any:
        return {pool.name: 1 for pool in pools}

    assert not list(parts_with_own_blocks([gpus(8, 8)], blocks))
    several = [gpus(8, 9, name="a"), gpus(8, 9, name="b")]
    assert not list(parts_with_own_blocks(several, blocks))


def test_sets_that_are_not_allowed_are_left_out(job: Any) -> None:
    problem = ppo(job, gpus(4))

    def at_least_two(units: Any, pool: Any, devices: int, everywhere: Any) -> bool:
        return devices >= 2

    expected = [
        placement
        for placement in placements(problem)
        if min(mesh.num_devices for mesh in placement.devices) >= 2
    ]
    assert list(placements(problem, allows=at_least_two)) == expected
