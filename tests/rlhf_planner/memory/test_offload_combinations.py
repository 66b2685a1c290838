"""Combinations of roles that leave their devices, as a search compares them."""

from __future__ import annotations

from typing import Any

from rlhf_api.plan import OffloadDepth
from rlhf_planner.feasibility import requested_placement
from rlhf_planner.memory.offloading import offload_combinations
from rlhf_planner.placement.placement import device_groups
from rlhf_planner.problem.problem import PlanningProblem

from ..search.searched_jobs import gpus, ppo


def combinations_of(problem: PlanningProblem, limit: int) -> list[dict[str, OffloadDepth]]:
    """Combinations of depths with all roles on all devices."""
    groups = device_groups(problem.pools, requested_placement(problem))
    return [dict(depths) for depths in offload_combinations(problem, groups, limit)]


def test_every_role_is_offloaded_by_itself(job: Any) -> None:
    problem = ppo(job, gpus(2), training={"engine": "Megatron"})
    found = combinations_of(problem, limit=100)
    # Actor and critic have three depths each, the reference has no master weights.
    assert len(found) == 3 * 3 * 2 and found[0] == {}
    assert {"critic": OffloadDepth.EVERYTHING} in found
    assert {"actor": OffloadDepth.DERIVED, "reference": OffloadDepth.EVERYTHING} in found
    assert {frozenset(depths.items()) for depths in found} == {
        frozenset(depths.items()) for depths in combinations_of(problem, limit=54)
    }


def test_of_many_combinations_roles_with_little_state_share_a_depth(job: Any) -> None:
    problem = ppo(job, gpus(2), training={"engine": "Megatron"})
    found = combinations_of(problem, limit=10)
    assert len(found) < 10
    # The critic has a few more parameters than the actor.
    assert {"critic": OffloadDepth.EVERYTHING} in found
    assert {"actor": OffloadDepth.EVERYTHING, "reference": OffloadDepth.EVERYTHING} in found
    assert {"reference": OffloadDepth.EVERYTHING} not in found
