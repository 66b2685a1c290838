"""More devices never make the proved plans of random jobs slower."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from rlhf_api.calls import IDLE
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_planner.candidates.used_devices import smaller_parts
from rlhf_planner.evaluate import hardware_of_pools
from rlhf_planner.plan import plan_problem
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.branch_and_bound import find_plan
from rlhf_planner.search.search import placement_family, run_search

from ...depth import examples
from ..search.searched_jobs import gpus, ppo
from .everything import check
from .random_jobs import random_problem

MAX_CANDIDATES = 200
# One device more made these slower, or left them without a plan, while plans used all devices.
SLOWER_BEFORE = (12, 14, 15, 32)


def random_job(seed: int) -> PlanningProblem:
    """A random job on few GPUs of a pool, with a free placement."""
    random = Random(seed)
    while True:
        problem = random_problem(random)
        is_free = problem.fixed.placement.type is PlacementType.AUTO
        if problem.device is Device.GPU and len(problem.pools) == 1 and is_free:
            return problem


def with_more_devices(problem: PlanningProblem) -> PlanningProblem:
    """One device more on the only node, or one node more."""
    (pool,) = problem.pools
    more = (
        {"devices_per_node": pool.devices_per_node + 1}
        if pool.nodes == 1
        else {"nodes": pool.nodes + 1}
    )
    return replace(problem, pools=(pool.model_copy(update=more),))


def proved_seconds(problem: PlanningProblem) -> float:
    """Step time of the fastest plan; infinite without one."""
    search = run_search(problem, hardware_of_pools(problem.pools), MAX_CANDIDATES)
    assert search.result.is_optimal
    return search.result.step_seconds


def assert_not_slower(seed: int) -> None:
    problem = random_job(seed)
    fewer, more = proved_seconds(problem), proved_seconds(with_more_devices(problem))
    assert more <= fewer * (1 + 1e-9)


@pytest.mark.parametrize("seed", SLOWER_BEFORE)
def test_a_device_more_does_not_give_a_slower_plan(seed: int) -> None:
    assert_not_slower(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40, 40 + examples(20)))
def test_more_devices_never_give_slower_plans(seed: int) -> None:
    assert_not_slower(seed)


@pytest.mark.parametrize("seed", SLOWER_BEFORE)
def test_a_plan_that_leaves_devices_idle_is_valid(seed: int) -> None:
    problem = with_more_devices(random_job(seed))
    plan = plan_problem(problem)
    check(problem, plan)
    assert any(group.phases == (IDLE,) for group in plan.memory)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*SLOWER_BEFORE, 4, 6, 10, 13])
def test_no_placement_with_idle_devices_is_faster(seed: int) -> None:
    """Sets and parts that are left out by a bound have no faster plan."""
    problem = random_job(seed)
    hardware = hardware_of_pools(problem.pools)
    parts = [part.pools for part in smaller_parts(problem.pools, {"a": 1})]
    family = [
        placement
        for pools in [problem.pools, *parts]
        for placement in placement_family(replace(problem, pools=pools))
    ]
    every = find_plan(problem, hardware, family, max_candidates=10**6)
    assert proved_seconds(problem) == pytest.approx(every.step_seconds, rel=1e-9)


def test_a_node_more_than_blocks_divide_does_not_give_a_slower_plan(job: Any) -> None:
    sections: dict[str, Any] = {
        "rewards": [{"name": "judge", "model": {"huggingFace": "Qwen/Qwen2.5-7B"}}],
        "rollout": {"maxPromptTokens": 1024, "maxResponseTokens": 1024},
        "schedule": {"steps": 1, "promptsPerStep": 2048},
    }
    fewer, more = (
        ppo(job, gpus(3, nodes), model="Qwen/Qwen2.5-7B", **sections) for nodes in (24, 25)
    )
    # 25 nodes have few blocks of one size, and all roles on all devices are slower.
    assert proved_seconds(more) <= proved_seconds(fewer) * (1 + 1e-9)
