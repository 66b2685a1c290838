"""The family of placements that are compared."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_planner.candidates.placements import MAX_UNITS, placements
from rlhf_planner.placement.strategy import JobStrategy

from ..search.searched_jobs import gpus, ppo


def ranges(placement: JobStrategy, pool: str = "pool") -> set[tuple[int, ...]]:
    """The ranks of each role in a pool, and of its generation."""
    return {tuple(mesh.ranks) for mesh in placement.devices if mesh.pool == pool}


def test_every_way_to_part_roles_and_devices_is_there(job: Any) -> None:
    """Three roles and the actor's generation on two devices: all four together, or in one of 7 ways
    in two sets on a device each; and the roles in two sets in 3 ways with generation on both
    devices. Where sets have equally many devices only their first order counts."""
    found = list(placements(ppo(job, gpus(2))))
    assert len(found) == 1 + 7 + 3
    assert len({str(each) for each in found}) == len(found)


@pytest.mark.parametrize(("count", "nodes"), [(1, 1), (4, 1), (8, 2), (6, 1)])
def test_all_devices_are_used_and_sets_share_none(job: Any, count: int, nodes: int) -> None:
    for placement in placements(ppo(job, gpus(count, nodes))):
        held = ranges(placement)
        everywhere = tuple(range(count * nodes))
        assert {rank for ranks in held for rank in ranks} == set(everywhere)
        apart = sorted(held - {everywhere}) or [everywhere]
        assert sum(apart, ()) == everywhere


def test_larger_pools_are_shared_out_in_units_so_that_there_are_few_enough(job: Any) -> None:
    for nodes in (2, 16, 128):
        found = list(placements(ppo(job, gpus(8, nodes)), max_placements=500))
        assert 100 < len(found) < 700
        sizes = {len(ranks) for placement in found for ranks in ranges(placement)}
        assert all(size % min(sizes) == 0 for size in sizes)


def test_pools_may_be_left_and_a_role_generates_in_its_own(job: Any) -> None:
    problem = ppo(job, gpus(2, name="a"), gpus(2, gpu="A100-80G", name="b"))
    found = list(placements(problem))
    assert found
    pools = [{own.devices.pool for own in each.roles.values()} for each in found]
    assert all(names in pools for names in ({"a"}, {"b"}, {"a", "b"}))
    for placement in found:
        for role, engines in placement.engines.items():
            assert placement.roles[role].devices.pool == engines.devices.pool


def test_of_many_roles_the_last_are_together(job: Any) -> None:
    """PPO with nine reward models: placements are as few as of a few roles, and soon there."""
    rewards = [{"name": f"r{n}", "model": {"huggingFace": "Qwen/Qwen2.5-0.5B"}} for n in range(9)]
    problem = ppo(job, gpus(8), rewards=rewards)
    assert len(problem.models) == 12
    found = list(placements(problem))
    assert 500 < len(found) < 10_000
    for placement in found:
        meshes = {placement.roles[role].devices for role in problem.models}
        assert len(meshes) < MAX_UNITS
    assert any(len({own.devices for own in each.roles.values()}) > 3 for each in found)
