"""The search for the fastest plan, against all plans of its family."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import product
from math import inf
from typing import Any

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.plan import OffloadDepth
from rlhf_flow.errors import PlanError
from rlhf_planner.candidates.placements import placements
from rlhf_planner.evaluate import evaluate, hardware_of_pools
from rlhf_planner.feasibility import PlacedJob, apply_placement, check_feasible
from rlhf_planner.memory.choices import memory_choices
from rlhf_planner.memory.offloading import offload_depths
from rlhf_planner.placement.strategy import Cut, JobStrategy, RoleStrategy
from rlhf_planner.plan import plan_problem
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.branch_and_bound import INFEASIBLE_FACTOR, SearchResult, find_plan

from .searched_jobs import gpus, ppo

PLAIN = {"activationRecompute": False, "microBatchTokens": 2048}


def search(problem: PlanningProblem, **options: Any) -> SearchResult:
    return find_plan(problem, hardware_of_pools(problem.pools), **options)


def layouts(problem: PlanningProblem, placement: JobStrategy) -> Iterator[JobStrategy]:
    """Every cut of every role, and size of engines, whether it divides anything or not."""
    is_megatron = problem.models["actor"].uses_megatron
    sizes = [1, 2] if is_megatron else [1]
    cuts = [Cut(*each) for each in product(sizes, sizes)]
    for chosen in product(cuts, repeat=len(problem.models)):
        roles = {
            role: placement.roles[role].with_cut(cut)
            for role, cut in zip(problem.models, chosen, strict=True)
        }
        for tensor in (1, 2, 4):
            actor = replace(placement.engines["actor"], tensor=tensor)
            yield JobStrategy(roles, {"actor": actor})


def memory_uses(problem: PlanningProblem, placed: PlacedJob) -> Iterator[dict[str, RoleStrategy]]:
    """Every micro-batch, recomputation and offloading of every role."""
    depths = [
        [*OffloadDepth]
        if facts.uses_megatron and facts.is_trained
        else [OffloadDepth.NOTHING, OffloadDepth.EVERYTHING]
        for facts in problem.models.values()
    ]
    for roles in memory_choices(problem, placed.strategy.roles, placed.groups):
        if not offload_depths(roles):
            for chosen in product(*depths):
                yield {
                    role: replace(roles[role], offload=depth)
                    for role, depth in zip(roles, chosen, strict=True)
                }


def min_step_seconds(problem: PlanningProblem) -> float:
    """Seconds of the fastest plan: every one is checked and estimated."""
    hardware, fastest = hardware_of_pools(problem.pools), inf
    for placement in placements(problem):
        for layout in layouts(problem, placement):
            with suppress(PlanError, ManifestError):
                placed = apply_placement(problem, layout)
                for roles in memory_uses(problem, placed):
                    with suppress(PlanError):
                        plan = build_plan(check_feasible(placed, roles))
                        fastest = min(fastest, evaluate(problem, plan, hardware).step_seconds)
    return fastest


@pytest.mark.parametrize("gibibytes", [16, 22, 80])
def test_it_is_the_fastest_of_all_plans(job: Any, gibibytes: int) -> None:
    problem = ppo(job, gpus(3, 1, gibibytes), training=PLAIN)
    found = search(problem)
    assert found.is_optimal
    assert found.step_seconds == pytest.approx(min_step_seconds(problem), rel=1e-12)


def test_it_is_the_fastest_of_all_cuts(job: Any) -> None:
    training = PLAIN | {"engine": "Megatron"}
    problem = ppo(job, gpus(2, 1, 40), training=training)
    found = search(problem)
    assert found.is_optimal
    assert found.step_seconds == pytest.approx(min_step_seconds(problem), rel=1e-12)


def test_a_search_that_ends_early_bounds_its_gap(job: Any) -> None:
    problem = ppo(job, gpus(3, 1, 24), training={"engine": "Megatron"})
    best = search(problem, max_candidates=10**6)
    assert best.is_optimal
    for limit in (1, 5, 20):
        early = search(problem, max_candidates=limit)
        assert early.bound_seconds <= best.step_seconds <= early.step_seconds
        assert early.num_candidates <= INFEASIBLE_FACTOR * limit + 1


def test_the_result_is_deterministic(job: Any) -> None:
    one, other = (search(ppo(job, gpus(4, 1, 24))) for _ in range(2))
    assert one.fitted is not None and other.fitted is not None
    assert build_plan(one.fitted) == build_plan(other.fitted)


def test_more_memory_never_gives_a_slower_plan(job: Any) -> None:
    seconds = []
    for gibibytes in (11, 12, 14, 16, 20, 24, 32, 48, 80):
        found = search(ppo(job, gpus(4, 1, gibibytes)), max_candidates=10**6)
        assert found.is_optimal
        seconds.append(found.step_seconds)
    assert seconds == sorted(seconds, reverse=True)
    assert seconds[0] > seconds[-1]


@pytest.mark.parametrize("rate", ["network_bytes_per_second", "link_bytes_per_second"])
def test_more_bandwidth_never_gives_a_slower_plan(job: Any, rate: str) -> None:
    problem = ppo(job, gpus(2, 2, 24))
    hardware = hardware_of_pools(problem.pools)["pool"]
    seconds = []
    for factor in (0.1, 0.5, 1.0, 4.0):
        faster = replace(hardware, **{rate: getattr(hardware, rate) * factor})
        found = find_plan(problem, {"pool": faster}, max_candidates=10**6)
        assert found.is_optimal
        seconds.append(found.step_seconds)
    assert seconds == sorted(seconds, reverse=True)


@pytest.mark.parametrize("tensor", [2, 4])
def test_engines_of_a_fixed_size_fit(job: Any, tensor: int) -> None:
    rollout = {
        "maxPromptTokens": 512,
        "maxResponseTokens": 512,
        "parallelism": {"tensor": tensor},
    }
    found = search(ppo(job, gpus(6), rollout=rollout))
    assert found.fitted is not None
    plan = build_plan(found.fitted)
    (engine,) = plan.generations
    assert engine.mesh.tensor == tensor and engine.mesh.num_devices % tensor == 0
    said = f"a generation engine of actor spans: {tensor}, as rollout.parallelism.tensor says"
    assert any(reason.endswith(said) for reason in plan.reasons)


def test_nodes_of_three_have_cuts_of_two_where_they_lie_within_one(job: Any) -> None:
    groups = [{"roles": ["actor", "critic", "reference"], "devices": 2}]
    training = PLAIN | {"engine": "Megatron"}
    placement = {"type": "Manual", "groups": groups}
    problem = ppo(job, gpus(3, 1, 40), training=training, placement=placement)
    plan = plan_problem(problem)
    fixed = PLAIN | {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 1}}
    same = plan_problem(ppo(job, gpus(3, 1, 40), training=fixed, placement=placement))
    assert plan.estimate is not None and same.estimate is not None
    assert plan.estimate.step_seconds <= same.estimate.step_seconds


def test_fixed_choices_are_kept(job: Any) -> None:
    training = PLAIN | {"engine": "Megatron", "parallelism": {"tensor": 2, "pipeline": 1}}
    rollout = {
        "maxPromptTokens": 512,
        "maxResponseTokens": 512,
        "parallelism": {"tensor": 1},
    }
    found = search(ppo(job, gpus(4), training=training, rollout=rollout))
    assert found.fitted is not None
    plan = build_plan(found.fitted)
    assert {(role.mesh.tensor, role.mesh.pipeline) for role in plan.roles if role.mesh} == {(2, 1)}
    assert {role.micro_batch_tokens for role in plan.roles if role.mesh} == {2048}
    assert [each.mesh.tensor for each in plan.generations] == [1]


def test_an_infeasible_problem_has_no_result(job: Any) -> None:
    found = search(ppo(job, gpus(2, 1, 4)))
    assert found.fitted is None and found.step_seconds == inf


def test_sets_are_in_an_order_that_tears_no_tensor_group(job: Any) -> None:
    # Largest first, a role would be on the third and fourth device: on two nodes of three.
    training = {"engine": "Megatron", "offload": "Never", "parallelism": {"tensor": 2}}
    rollout = {"maxPromptTokens": 512, "maxResponseTokens": 512, "parallelism": {"tensor": 1}}
    pool = gpus(3, 2, 44.7, gpu="L40S")
    problem = ppo(job, pool, model="Qwen/Qwen2.5-3B", training=training, rollout=rollout)
    found = search(problem)
    assert found.fitted is not None
    firsts = {role.devices.first_rank for role in found.fitted.strategy.roles.values()}
    assert firsts == {0, 4}
