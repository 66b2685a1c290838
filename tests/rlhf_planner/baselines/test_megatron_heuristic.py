"""One cut for everything: tensor ranks first, as few as fit."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.mesh import Mesh
from rlhf_planner.baselines.rule import fits, megatron_heuristic, symmetric_placements
from rlhf_planner.feasibility import apply_placement
from rlhf_planner.problem.problem import PlanningProblem

from ..search.searched_jobs import gpus, ppo

MEGATRON = {"engine": "Megatron"}
EIGHT = "Qwen/Qwen3-8B"


def cuts(problem: PlanningProblem) -> list[tuple[int, int, int]]:
    """Tensor ranks and stages of the actor, and ranks of its engines, in the order of the rule."""
    mesh = Mesh(pool="pool", data=problem.pools[0].num_devices)
    return [
        (
            placement.roles["actor"].tensor or 0,
            placement.roles["actor"].pipeline or 0,
            placement.engines["actor"].tensor or 0,
        )
        for _, placement in symmetric_placements(problem, problem.models, mesh)
    ]


def test_tensor_ranks_grow_within_a_node_and_then_stages(job: Any) -> None:
    """36 layers, 8 heads of keys and values, 2 nodes of 4."""
    problem = ppo(job, gpus(4, 2), training=MEGATRON, model=EIGHT)
    assert cuts(problem) == [(1, 1, 1), (2, 1, 2), (4, 1, 4), (4, 2, 4)]


def test_where_nothing_is_cut_engines_grow_alone(job: Any) -> None:
    assert cuts(ppo(job, gpus(8), model=EIGHT)) == [(1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 1, 8)]


def test_a_cut_of_the_manifest_stays(job: Any) -> None:
    training = {**MEGATRON, "parallelism": {"tensor": 2, "pipeline": 2}}
    assert {cut[:2] for cut in cuts(ppo(job, gpus(8), training=training, model=EIGHT))} == {(2, 2)}


@pytest.mark.parametrize("gibibytes", [16, 24, 32, 48, 80])
def test_the_first_of_them_that_fits_is_taken(job: Any, gibibytes: int) -> None:
    training = {**MEGATRON, "offload": "Never"}
    problem = ppo(job, gpus(4, 2, gibibytes), training=training, model="Qwen/Qwen3-4B")
    mesh = Mesh(pool="pool", data=8)
    fitting = [
        placement
        for _, placement in symmetric_placements(problem, problem.models, mesh)
        if fits(apply_placement(problem, placement))
    ]
    found = megatron_heuristic(problem)
    if not fitting:
        assert found is None
        return
    assert found is not None
    assert found.placed.strategy.engines == fitting[0].engines
    roles = found.strategy.roles
    assert {role: (own.devices, own.cut) for role, own in roles.items()} == {
        role: (own.devices, own.cut) for role, own in fitting[0].roles.items()
    }
    assert all(role in roles for role in ("actor", "critic", "reference"))
    assert len({own.mesh for own in roles.values()}) == 1
