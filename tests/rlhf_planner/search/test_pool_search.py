"""Plans that need not take all devices, against the fastest plans of every size."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_api.plan import Plan, Pool
from rlhf_flow.errors import DoesNotFit, PlanError, StepTooLong, TimesUnknown
from rlhf_planner.evaluate import hardware_of_pools
from rlhf_planner.plan import plan_problem
from rlhf_planner.problem.devices import gpu_inventory, local_inventory
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.branch_and_bound import UNLIMITED
from rlhf_planner.search.pool_size import num_devices, pool_subsets
from rlhf_planner.search.pool_size_bounds import PoolSizeBounds

from ...depth import examples
from ..conftest import make_job
from .searched_jobs import gpus, ppo

pytestmark = pytest.mark.slow

PLAIN = {"activationRecompute": False, "microBatchTokens": 2048}
DEVICE_TIME = {"type": "DeviceTime"}
FEW_PROMPTS = {"steps": 1, "promptsPerStep": 8}


def fewest(seconds: float) -> dict[str, Any]:
    return {"type": "FewestDevices", "maxStepSeconds": seconds}


def with_objective(problem: PlanningProblem, objective: dict[str, Any]) -> PlanningProblem:
    placement = problem.fixed.placement
    asked = type(placement.objective).model_validate(objective)
    changed = placement.model_copy(update={"objective": asked})
    return replace(problem, fixed=replace(problem.fixed, placement=changed))


def planned(problem: PlanningProblem, max_candidates: int = UNLIMITED) -> Plan:
    plan = plan_problem(problem, max_candidates)
    assert plan.estimate is not None and plan.search is not None
    return plan


def step_seconds(plan: Plan) -> float:
    """Without a fusion, by which sizes are not compared."""
    assert plan.estimate is not None and plan.search is not None
    return plan.search.unfused_seconds or plan.estimate.step_seconds


def seconds_of_all_sizes(problem: PlanningProblem) -> dict[tuple[Pool, ...], float]:
    """The shortest steps on every part of the pools that has a plan, each searched alone."""
    found = {}
    for pools in pool_subsets(problem.pools):
        with suppress(PlanError):
            found[pools] = step_seconds(planned(replace(problem, pools=pools)))
    return found


PROBLEMS = {
    "a node": ([gpus(4, 1, 22)], PLAIN, {}),
    "nodes": ([gpus(2, 3, 40)], PLAIN, {}),
    "little work": ([gpus(2, 4, 80)], PLAIN, {"schedule": FEW_PROMPTS}),
    "Megatron": ([gpus(2, 2, 60)], PLAIN | {"engine": "Megatron"}, {}),
    "rounds": (
        [gpus(2, 2)],
        PLAIN,
        {
            "algorithm": {"type": "DAPO"},
            "models": {"actor": {"source": {"huggingFace": "Qwen/Qwen2.5-1.5B"}}},
            "rollout": {"samplesPerPrompt": 4, "maxPromptTokens": 512, "maxResponseTokens": 512},
        },
    ),
    "two pools": (
        [gpus(2, gpu="L40S", gibibytes=40, name="slow"), gpus(2, name="fast")],
        PLAIN,
        {},
    ),
    "colocated": ([gpus(4, 2)], PLAIN, {"placement": {"type": "Colocated"}}),
    "split": ([gpus(4, 2)], PLAIN, {"placement": {"type": "Split"}}),
}


@pytest.fixture(scope="module", params=PROBLEMS)
def sized(request: Any) -> tuple[PlanningProblem, dict[tuple[Pool, ...], float]]:
    """A problem, and the shortest steps of all of its sizes."""
    pools, training, sections = PROBLEMS[request.param]
    problem = ppo(make_job, *pools, training=training, **sections)
    return problem, seconds_of_all_sizes(problem)


Sized = tuple[PlanningProblem, dict[tuple[Pool, ...], float]]


def test_device_time_is_the_least_of_all_sizes(sized: Sized) -> None:
    problem, seconds = sized
    plan = planned(with_objective(problem, DEVICE_TIME))
    products = {pools: num_devices(pools) * each for pools, each in seconds.items()}
    assert plan.num_devices * step_seconds(plan) == pytest.approx(min(products.values()))
    assert step_seconds(plan) == pytest.approx(seconds[plan.pools])
    assert "proved" in plan.reasons[0] and "DeviceTime" in plan.reasons[0]


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_fewest_devices_that_are_fast_enough_and_of_those_the_fastest(
    sized: Sized, share: float
) -> None:
    problem, seconds = sized
    limit = min(seconds.values()) * (1 - share) + max(seconds.values()) * share
    plan = planned(with_objective(problem, fewest(limit)))
    least = min((num_devices(pools), each) for pools, each in seconds.items() if each <= limit)
    assert (plan.num_devices, step_seconds(plan)) == pytest.approx(least)
    assert "proved" in plan.reasons[0]


def test_what_no_size_reaches_is_refused_with_the_shortest_step(sized: Sized) -> None:
    problem, seconds = sized
    shortest = min(seconds.values())
    with pytest.raises(StepTooLong) as refused:
        planned(with_objective(problem, fewest(shortest / 1.01)))
    text = str(refused.value)
    assert f"got {shortest:,.4g} s for the shortest step" in text
    enough = re.search(r"raise it to at least ([\d.e+-]+)", text)
    assert enough is not None and shortest <= float(enough[1]) <= shortest * 1.01
    plan = planned(with_objective(problem, fewest(float(enough[1]))))
    assert step_seconds(plan) <= float(enough[1])
    assert refused.value.location == ("spec", "placement", "objective", "maxStepSeconds")


def test_bounds_of_sizes_are_below_their_shortest_steps(sized: Sized) -> None:
    problem, seconds = sized
    bounds = PoolSizeBounds(problem, hardware_of_pools(problem.pools))
    for pools, each in seconds.items():
        assert bounds.step_seconds(replace(problem, pools=pools)) <= each * (1 + 1e-12)


@settings(max_examples=examples(10), deadline=None)
@given(
    st.integers(1, 8),
    st.integers(1, 3),
    st.sampled_from(["H100", "L40S"]),
    st.sampled_from([30, 80]),
    st.sampled_from([{}, {"engine": "Megatron"}]),
    st.sampled_from([8, 200]),
)
def test_a_plan_on_a_part_is_one_and_its_sizes_say_why(
    count: int, nodes: int, gpu: str, gibibytes: int, training: dict[str, Any], prompts: int
) -> None:
    """Also where searches end early."""
    schedule = {"steps": 1, "promptsPerStep": prompts}
    problem = ppo(
        make_job, gpus(count, nodes, gibibytes, gpu), training=training, schedule=schedule
    )
    try:
        plan = planned(with_objective(problem, DEVICE_TIME), max_candidates=20)
    except DoesNotFit:
        return
    assert plan.search is not None
    products = [
        size.num_devices * size.step_seconds
        for size in plan.search.sizes
        if size.step_seconds is not None
    ]
    assert plan.num_devices * step_seconds(plan) == pytest.approx(min(products))
    least = [
        size.num_devices * size.bound_seconds
        for size in plan.search.sizes
        if size.bound_seconds is not None
    ]
    is_proved = min(least) >= min(products) * (1 - 1e-12)
    assert ("proved by" in plan.reasons[0]) == is_proved
    assert len(plan.search.sizes) == len(pool_subsets(problem.pools))


def test_a_job_of_little_work_takes_one_device(job: Any) -> None:
    """Decoding eight sequences takes as long on any number of devices, so more cost more."""
    problem = ppo(job, gpus(8, 16), schedule=FEW_PROMPTS, placement={"objective": DEVICE_TIME})
    plan = planned(problem)
    assert plan.num_devices < 8
    assert sum(pool.num_devices for pool in plan.pools) == plan.num_devices


def test_a_limit_of_devices_holds_beside_an_objective(job: Any) -> None:
    free = ppo(job, gpus(8, 4), placement={"objective": fewest(8.0)})
    limited = ppo(job, gpus(8, 4), placement={"objective": fewest(8.0), "maxDevices": 8})
    assert planned(free).num_devices <= 32
    assert limited.pools[0].num_devices == 8 and planned(limited).num_devices <= 8
    with pytest.raises(StepTooLong, match=r"on 8 of 8 devices .* raise placement.maxDevices"):
        planned(ppo(job, gpus(8, 4), placement={"objective": fewest(1.0), "maxDevices": 8}))


@pytest.mark.parametrize("asked_for", [None, 4])
def test_this_machines_gpus_are_a_pool_like_others(job: Any, asked_for: int | None) -> None:
    """As `rlhf run` and `rlhf plan` with --devices have them."""
    machine = gpu_inventory((80 * 10**9,) * 8, asked_for, "H100")
    problem = ppo(job, machine, schedule=FEW_PROMPTS, placement={"objective": DEVICE_TIME})
    plan = planned(problem)
    assert plan.pools[0].name == "local" and plan.num_devices <= (asked_for or 8)
    assert plan.search is not None and plan.search.sizes[-1].num_devices == (asked_for or 8)


def test_more_devices_may_take_longer_so_none_are_ruled_out_for_that(job: Any) -> None:
    """Collectives of more nodes cost more than eight prompts gain."""
    pool = gpus(8, 8)
    sections: dict[str, Any] = {"schedule": FEW_PROMPTS, "placement": {"type": "Colocated"}}
    few, all_of_them = (
        step_seconds(planned(ppo(job, part, **sections))) for part in (gpus(8), pool)
    )
    assert few < all_of_them
    limit = fewest((few + all_of_them) / 2)
    plan = planned(with_objective(ppo(job, pool, **sections), limit))
    assert plan.num_devices <= 8


def test_what_fits_nowhere_is_refused_with_the_sum(job: Any) -> None:
    for objective in (DEVICE_TIME, fewest(10.0)):
        with pytest.raises(DoesNotFit, match=r"does not fit: got [\d.]+ GiB on each device"):
            planned(ppo(job, gpus(2, 1, 5), placement={"objective": objective}))


@pytest.mark.parametrize(
    ("pools", "why"),
    [
        ([gpus(8).model_copy(update={"gpu": None})], "got gpu none, allowed T4"),
        ([gpus(8, gpu="MI300X")], "got gpu MI300X, allowed T4"),
        ([local_inventory(2, 2**38)], "got device CPU"),
    ],
)
def test_times_that_nobody_knows_are_not_compared(
    job: Any, pools: Sequence[Pool], why: str
) -> None:
    problem = ppo(job, *pools)
    plan_problem(problem)
    with pytest.raises(TimesUnknown, match=re.escape(why)) as refused:
        plan_problem(with_objective(problem, DEVICE_TIME))
    assert "placement.objective DeviceTime compares times" in str(refused.value)


def test_all_devices_are_taken_by_default(job: Any) -> None:
    problem = ppo(job, gpus(8), schedule=FEW_PROMPTS)
    plan = planned(problem)
    assert plan.num_devices == 8 and plan.search is not None and plan.search.sizes == ()
    assert planned(with_objective(problem, {"type": "StepTime"})) == plan
