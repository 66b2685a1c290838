"""Plans of jobs on GPUs: found by a search, valid, never slower than simpler rules."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.spec.hardware import HardwareSpec
from rlhf_flow.errors import DevicesUnknown, DoesNotFit
from rlhf_planner.plan import plan_problem
from rlhf_planner.search.branch_and_bound import UNLIMITED

from ..plan_checker.everything import check
from .searched_jobs import gpus, ppo


@pytest.mark.parametrize("training", [{}, {"engine": "Megatron", "offload": "Never"}])
def test_with_more_memory_no_proved_plan_is_slower(job: Any, training: dict[str, Any]) -> None:
    """Whatever the rules choose from which the search starts."""
    plans = [
        plan_problem(ppo(job, gpus(2, 1, gibibytes), training=training), max_candidates=UNLIMITED)
        for gibibytes in (40, 48, 80)
    ]
    seconds = [plan.estimate.step_seconds for plan in plans if plan.estimate is not None]
    assert len(seconds) == len(plans)
    assert all(plan.search is not None and plan.search.is_optimal for plan in plans)
    assert seconds == sorted(seconds, reverse=True)


def test_roles_are_placed_apart_where_that_is_faster(job: Any) -> None:
    """Decoding a few sequences does not get faster with more devices, so half of these are better
    given to the critic, which works at the same time."""
    problem = ppo(job, gpus(8), schedule={"steps": 1, "promptsPerStep": 8})
    plan = plan_problem(problem)
    assert plan.estimate is not None and plan.search is not None
    colocated = plan.search.alternatives[0]
    assert colocated.name == "Colocated" and colocated.step_seconds is not None
    assert plan.estimate.step_seconds < colocated.step_seconds
    critic, actor = plan.role("critic"), plan.role("actor")
    assert critic is not None and actor is not None and critic.mesh and actor.mesh
    assert not {*critic.mesh.ranks} & {*actor.mesh.ranks}
    assert plan.search.is_optimal
    assert plan.reasons[0].endswith("proved, none of them takes less")


LONG = {
    "maxPromptTokens": 512,
    "maxResponseTokens": 8192,
    "expectedResponseTokens": 1000,
    "expectedTruncated": 0,
}


def test_stages_overlap_where_that_is_faster(job: Any) -> None:
    """Few responses are long: log-probabilities begin while one engine finishes them. What is said
    of all placements is said of plans without that."""
    schedule = {"steps": 1, "promptsPerStep": 64}
    problem = ppo(job, gpus(8), model="Qwen/Qwen2.5-7B", rollout=LONG, schedule=schedule)
    plan = plan_problem(problem)
    check(problem, plan)
    assert plan.estimate is not None and plan.search is not None
    unfused = plan.search.unfused_seconds
    assert unfused is not None and plan.estimate.step_seconds < 0.99 * unfused
    assert plan.search.is_optimal and plan.search.bound_seconds == unfused
    assert "without a stage fusion" in plan.reasons[0]
    assert f"{unfused - plan.estimate.step_seconds:.2g} s shorter" in plan.reasons[1]
    (generation,) = plan.generations
    assert generation.fusion is not None and generation.fusion.calls
    never = ppo(
        job,
        gpus(8),
        model="Qwen/Qwen2.5-7B",
        rollout=LONG | {"stageFusion": "Never"},
        schedule=schedule,
    )
    without = plan_problem(never)
    assert without.estimate is not None and without.search is not None
    assert without.estimate.step_seconds == unfused
    assert without.search.unfused_seconds is None
    assert all(each.fusion is None for each in without.generations)


def test_pools_of_several_gpus_are_all_used(job: Any) -> None:
    """What is slow is given less: the actor is on the faster GPUs."""
    problem = ppo(job, gpus(4, gpu="L40S", gibibytes=48, name="slow"), gpus(4, name="fast"))
    plan = plan_problem(problem)
    check(problem, plan)
    actor = plan.role("actor")
    assert actor is not None and actor.mesh is not None and actor.mesh.pool == "fast"


def test_a_placement_that_is_decided_is_kept(job: Any) -> None:
    groups = [
        {"roles": ["actor", "reference"], "devices": 4},
        {"roles": ["critic"], "firstDevice": 4},
    ]
    problem = ppo(job, gpus(8), placement={"type": "Manual", "groups": groups})
    plan = plan_problem(problem)
    check(problem, plan)
    where = {role.role: role.mesh.ranks for role in plan.roles if role.mesh}
    assert where == {"actor": range(4), "reference": range(4), "critic": range(4, 8)}
    assert plan.search is not None and plan.search.num_placements == 1


def test_gpus_of_unknown_speed_are_planned_without_a_search(job: Any) -> None:
    problem = ppo(job, gpus(8).model_copy(update={"gpu": None}))
    plan = plan_problem(problem)
    check(problem, plan)
    assert plan.search is None and plan.estimate is None


def test_the_network_that_is_given_counts(job: Any) -> None:
    """Megatron's replicas on two nodes send gradients over it."""
    training = {"engine": "Megatron"}
    fast = gpus(2, 2)
    slow = fast.model_copy(update={"hardware": HardwareSpec(network_gigabits_per_second=1)})
    plans = [plan_problem(ppo(job, pool, training=training), 30) for pool in (fast, slow)]
    estimates = [plan.estimate for plan in plans]
    assert estimates[0] is not None and estimates[1] is not None
    assert estimates[0].hardware == {"pool": "H100"}
    assert estimates[1].hardware == {"pool": "H100 (network as given)"}
    assert estimates[0].step_seconds < estimates[1].step_seconds


def test_a_gpu_that_is_described_is_planned_for_like_others(job: Any) -> None:
    described = HardwareSpec(bfloat16_teraflops=989.4, memory_gigabytes_per_second=3350)
    pool = gpus(8).model_copy(update={"gpu": "Own", "hardware": described})
    problem = ppo(job, pool)
    plan = plan_problem(problem)
    check(problem, plan)
    assert plan.search is not None and plan.search.is_optimal


def test_a_pool_of_unknown_speed_is_not_left_idle_in_silence(job: Any) -> None:
    """Nobody knows what to put there; who decides it gets a plan."""
    pools = (gpus(4, name="known"), gpus(4, gpu="Own", name="unknown"))
    with pytest.raises(DevicesUnknown, match=r"got gpu Own.*nodePools\[\].hardware; or write"):
        plan_problem(ppo(job, *pools))
    problem = ppo(job, *pools, placement={"type": "Split"})
    plan = plan_problem(problem)
    check(problem, plan)
    assert all(plan.roles_in(pool.name) for pool in pools)


def test_what_does_not_fit_is_refused_with_the_sum(job: Any) -> None:
    with pytest.raises(DoesNotFit, match=r"does not fit: got [\d.]+ GiB on each device"):
        plan_problem(ppo(job, gpus(2, 1, 5)))


def test_a_fusion_that_is_told_takes_a_plan_that_can_have_one(job: Any) -> None:
    """The fastest plan offloads, and loads are beside its calls: another one is taken."""
    rollout = {"maxPromptTokens": 512, "maxResponseTokens": 4096, "stageFusion": "Always"}
    schedule = {"steps": 1, "promptsPerStep": 64}
    problem = ppo(job, gpus(4), model="Qwen/Qwen2.5-7B", rollout=rollout, schedule=schedule)
    plan = plan_problem(problem)
    check(problem, plan)
    assert any(each.fusion is not None for each in plan.generations)
