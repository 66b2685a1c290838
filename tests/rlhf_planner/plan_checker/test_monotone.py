"""More never makes the plans of random jobs slower, and the same gives the same plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from random import Random

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.spec.models import Offload
from rlhf_api.spec.placement import PlacementSpec, PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import PlanError
from rlhf_planner.candidates.placements import placements
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import hardware_of_pools
from rlhf_planner.feasibility import requested_placement
from rlhf_planner.plan import plan_problem
from rlhf_planner.problem.problem import FixedStrategy, PlanningProblem
from rlhf_planner.search.branch_and_bound import find_plan

from .random_jobs import random_problem

pytestmark = pytest.mark.slow

MOST_PLACEMENTS, MOST_DEVICES, MOST_FITTED = 20, 8, 40
"""Of a job that is compared; larger ones, and those of which it takes longer to prove what is
fastest, are left out for the sake of time."""
RATES = (
    "bfloat16_flops_per_second",
    "memory_bytes_per_second",
    "link_bytes_per_second",
    "network_bytes_per_second",
    "host_bytes_per_second",
)


def jobs(seed: int, number: int) -> Iterator[tuple[PlanningProblem, Random]]:
    random = Random(seed)
    for _ in range(number):
        problem = random_problem(random)
        if problem.device is Device.GPU:
            yield problem, random


def least_seconds(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> float | None:
    """Of the fastest plan, proved; infinite where none fits. None: it is not compared."""
    is_free = problem.fixed.placement.type is PlacementType.AUTO
    try:
        family = tuple(placements(problem)) if is_free else (requested_placement(problem),)
    except (PlanError, ManifestError):
        return None
    if len(family) > MOST_PLACEMENTS or sum(p.num_devices for p in problem.pools) > MOST_DEVICES:
        return None
    found = find_plan(problem, hardware, family, max_candidates=MOST_FITTED)
    return found.step_seconds if found.is_optimal else None


def freer(problem: PlanningProblem, random: Random) -> PlanningProblem:
    """Something is not decided any more."""
    role = random.choice([*problem.models])
    facts = problem.models[role]
    changed = random.choice(
        [
            FixedStrategy(),
            replace(facts.fixed, micro_batch_tokens=None),
            replace(facts.fixed, recompute=None),
            replace(facts.fixed, offload=Offload.AUTO),
            replace(facts.fixed, tensor=None, pipeline=None),
        ]
    )
    fixed = problem.fixed
    if random.random() < 0.5:
        fixed = replace(fixed, engine_tensor=None)
    if fixed.placement.type is PlacementType.COLOCATED:
        fixed = replace(fixed, placement=PlacementSpec())
    return replace(
        problem, fixed=fixed, models={**problem.models, role: replace(facts, fixed=changed)}
    )


@pytest.mark.parametrize("seed", range(3))
def test_more_memory_and_faster_devices_never_give_slower_plans(seed: int) -> None:
    num_compared = 0
    for problem, random in jobs(100 + seed, 30):
        hardware = hardware_of_pools(problem.pools)
        before = least_seconds(problem, hardware)
        if before is None:
            continue
        roomy = tuple(
            pool.model_copy(
                update={
                    "memory_bytes_per_device": int(
                        pool.memory_bytes_per_device * random.uniform(1, 1.5)
                    )
                }
            )
            for pool in problem.pools
        )
        with_memory = least_seconds(replace(problem, pools=roomy), hardware)
        rate, name = random.choice(RATES), random.choice(problem.pools).name
        better = getattr(hardware[name], rate) * random.choice([1.1, 2, 10])
        faster = {**hardware, name: replace(hardware[name], **{rate: better})}
        with_rate = least_seconds(problem, faster)
        for after in (with_memory, with_rate):
            if after is not None:
                assert after <= before * (1 + 1e-9), (rate, problem)
                num_compared += 1
    assert num_compared > 5


@pytest.mark.parametrize("seed", range(3))
def test_what_is_left_to_the_planner_never_gives_slower_plans(seed: int) -> None:
    num_compared = 0
    for problem, random in jobs(200 + seed, 30):
        hardware = hardware_of_pools(problem.pools)
        before, after = (
            least_seconds(each, hardware) for each in (problem, freer(problem, random))
        )
        if before is not None and after is not None:
            assert after <= before * (1 + 1e-9), problem
            num_compared += 1
    assert num_compared > 5


def test_the_same_job_always_has_the_same_plan() -> None:
    for problem, _ in jobs(300, 20):
        try:
            one, other = (plan_problem(replace(problem), max_candidates=3) for _ in range(2))
        except (PlanError, ManifestError):
            continue
        assert one == other
