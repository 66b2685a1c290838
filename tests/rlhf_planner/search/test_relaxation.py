"""What plans take at fastest, against the plans themselves: of random jobs every layout of some
placements, computed in every way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import inf
from random import Random

import pytest

from rlhf_api.errors import ManifestError
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import PlanError
from rlhf_planner.bounds.calls import CallTimeBounds
from rlhf_planner.bounds.memory import MemoryBounds
from rlhf_planner.bounds.step import Order, Seconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.evaluate import evaluate, hardware_of_pools
from rlhf_planner.feasibility import PlacedJob, apply_placement, check_feasible, requested_placement
from rlhf_planner.memory.choices import MemoryChoice
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.relaxation import Relaxation
from rlhf_planner.search.search_space import LayoutSpace
from rlhf_planner.strategies.placements import Placement, placements

from ..plan_checker.random_jobs import random_problem


class Bounded:
    """A problem with its bounds."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem, self.hardware = problem, hardware_of_pools(problem.pools)
        links = {p.name: Links(self.hardware[p.name], p.devices_per_node) for p in problem.pools}
        self.times = CallTimeBounds(problem, links)
        self.relaxation = Relaxation(problem, self.times, MemoryBounds(problem))

    def exact(self, placed: PlacedJob, choice: MemoryChoice) -> float | None:
        """Seconds of a plan. None: it does not fit."""
        try:
            fitted = check_feasible(placed, choice)
        except PlanError:
            return None
        return evaluate(self.problem, build_plan(fitted), self.hardware).step_seconds

    def step(
        self, placement: Placement, seconds: Seconds | None, orders: Sequence[Order] = ()
    ) -> float | None:
        return (
            None if seconds is None else self.times.steps.step_seconds(placement, seconds, orders)
        )


def jobs(seed: int, number: int) -> Iterator[tuple[PlanningProblem, Placement]]:
    """Random jobs on GPUs, each with one of its placements."""
    random = Random(seed)
    for _ in range(number):
        problem = random_problem(random)
        if problem.device is Device.CPU:
            continue
        is_free = problem.fixed.placement.type is PlacementType.AUTO
        try:
            family = list(placements(problem)) if is_free else [requested_placement(problem)]
        except (PlanError, ManifestError):
            continue
        yield problem, random.choice(family)


def some_layouts(random: Random, space: LayoutSpace) -> list[tuple[int, ...]]:
    every = list(product(*(range(len(each.options)) for each in space.dimensions)))
    return random.sample(every, min(3, len(every)))


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_below_its_bounds_and_no_feasible_plan_is_pruned(
    seed: int,
) -> None:
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(seed, 20):
        bounded = Bounded(problem)
        of_placement = bounded.step(placement, bounded.relaxation.placement_bounds(placement))
        for space in bounded.relaxation.feasible_spaces(placement):
            for assignment in some_layouts(random, space):
                starts = [assignment[:count] for count in range(len(assignment) + 1)]
                bounds = [
                    bounded.step(placement, bounded.relaxation.node_bounds(space, s), space.orders)
                    for s in starts
                ]
                try:
                    placed = apply_placement(problem, space.placement_of(assignment))
                except (PlanError, ManifestError):
                    continue
                for _ in range(3):
                    configs = list(
                        map(random.choice, bounded.relaxation.role_configs(space, assignment))
                    )
                    exact = bounded.exact(placed, bounded.relaxation.memory_choice(space, configs))
                    if exact is None:
                        continue
                    found = bounded.relaxation.config_bounds(space, assignment, configs)
                    bound = bounded.step(placement, found, space.orders)
                    for each in (of_placement, *bounds, bound):
                        assert each is not None and each <= exact * (1 + 1e-9)
                    num_compared += 1
    assert num_compared > 20


@pytest.mark.parametrize("seed", range(2))
def test_no_config_that_is_left_out_is_faster(seed: int) -> None:
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(40 + seed, 12):
        bounded = Bounded(problem)
        for space in bounded.relaxation.feasible_spaces(placement):
            for assignment in some_layouts(random, space)[:1]:
                every = list(product(*bounded.relaxation.role_configs(space, assignment)))
                if len(every) > 100:
                    continue
                try:
                    placed = apply_placement(problem, space.placement_of(assignment))
                except (PlanError, ManifestError):
                    continue
                choices = [bounded.relaxation.memory_choice(space, configs) for configs in every]
                fastest = min((bounded.exact(placed, each) or inf for each in choices), default=inf)
                kept = [
                    choice for _, choice in bounded.relaxation.feasible_choices(space, assignment)
                ]
                found = min((bounded.exact(placed, each) or inf for each in kept), default=inf)
                assert found == pytest.approx(fastest, rel=1e-9)
                num_compared += fastest < inf
    assert num_compared > 2


def test_pruned_spaces_have_no_feasible_layout() -> None:
    num_compared = 0
    for problem, placement in jobs(9, 60):
        bounded = Bounded(problem)
        for wide in bounded.relaxation.spaces(placement):
            if wide.pruned() is not None:
                continue
            for assignment in some_layouts(Random(0), wide)[:1]:
                try:
                    placed = apply_placement(problem, wide.placement_of(assignment))
                except (PlanError, ManifestError):
                    continue
                num_compared += 1
                for configs in zip(
                    *bounded.relaxation.role_configs(wide, assignment), strict=False
                ):
                    choice = bounded.relaxation.memory_choice(wide, configs)
                    assert bounded.exact(placed, choice) is None
    assert num_compared > 5
