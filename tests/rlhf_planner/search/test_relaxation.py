"""What plans take at least, against the plans themselves: of random jobs every layout of some
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
from rlhf_planner.bounds.memory import LeastMemory
from rlhf_planner.bounds.step import Order, Seconds
from rlhf_planner.bounds.time import LeastSeconds
from rlhf_planner.cost.collectives import Links
from rlhf_planner.evaluate import evaluate, hardware_of_pools
from rlhf_planner.feasibility import PlacedJob, fit_job, place_job, places_of
from rlhf_planner.memory.choices import MemoryChoice
from rlhf_planner.plan_builder import fitted_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.relaxation import Layouts
from rlhf_planner.search.search_space import LayoutSpace
from rlhf_planner.strategies.placements import Placement, placements

from ..plan_checker.random_jobs import random_problem


class Bounded:
    """A problem with its bounds."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem, self.hardware = problem, hardware_of_pools(problem.pools)
        links = {p.name: Links(self.hardware[p.name], p.devices_per_node) for p in problem.pools}
        self.least = LeastSeconds(problem, links)
        self.layouts = Layouts(problem, self.least, LeastMemory(problem))

    def exact(self, placed: PlacedJob, choice: MemoryChoice) -> float | None:
        """Seconds of a plan. None: it does not fit."""
        try:
            fitted = fit_job(placed, choice)
        except PlanError:
            return None
        return evaluate(self.problem, fitted_plan(fitted), self.hardware).step_seconds

    def step(
        self, placement: Placement, seconds: Seconds | None, orders: Sequence[Order] = ()
    ) -> float | None:
        return None if seconds is None else self.least.steps.of_step(placement, seconds, orders)


def jobs(seed: int, number: int) -> Iterator[tuple[PlanningProblem, Placement]]:
    """Random jobs on GPUs, each with one of its placements."""
    random = Random(seed)
    for _ in range(number):
        problem = random_problem(random)
        if problem.device is Device.CPU:
            continue
        is_free = problem.fixed.placement.type is PlacementType.AUTO
        try:
            family = list(placements(problem)) if is_free else [places_of(problem)]
        except (PlanError, ManifestError):
            continue
        yield problem, random.choice(family)


def some_layouts(random: Random, space: LayoutSpace) -> list[tuple[int, ...]]:
    every = list(product(*(range(len(each.options)) for each in space.dimensions)))
    return random.sample(every, min(3, len(every)))


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_takes_less_than_any_of_its_bounds_and_none_that_fits_is_left_out(
    seed: int,
) -> None:
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(seed, 20):
        bounded = Bounded(problem)
        of_placement = bounded.step(placement, bounded.layouts.least(placement))
        for space in bounded.layouts.of(placement):
            for place in some_layouts(random, space):
                starts = [place[:count] for count in range(len(place) + 1)]
                bounds = [
                    bounded.step(placement, bounded.layouts.least_left(space, s), space.orders)
                    for s in starts
                ]
                try:
                    placed = place_job(problem, space.places(place))
                except (PlanError, ManifestError):
                    continue
                for _ in range(3):
                    ways = list(map(random.choice, bounded.layouts.role_ways(space, place)))
                    exact = bounded.exact(placed, bounded.layouts.memory_choice(space, ways))
                    if exact is None:
                        continue
                    found = bounded.layouts.of_ways(space, place, ways)
                    bound = bounded.step(placement, found, space.orders)
                    for each in (of_placement, *bounds, bound):
                        assert each is not None and each <= exact * (1 + 1e-9)
                    num_compared += 1
    assert num_compared > 20


@pytest.mark.parametrize("seed", range(2))
def test_of_the_ways_to_compute_in_a_layout_none_that_is_left_out_is_faster(seed: int) -> None:
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(40 + seed, 12):
        bounded = Bounded(problem)
        for space in bounded.layouts.of(placement):
            for place in some_layouts(random, space)[:1]:
                every = list(product(*bounded.layouts.role_ways(space, place)))
                if len(every) > 100:
                    continue
                try:
                    placed = place_job(problem, space.places(place))
                except (PlanError, ManifestError):
                    continue
                choices = [bounded.layouts.memory_choice(space, ways) for ways in every]
                least = min((bounded.exact(placed, each) or inf for each in choices), default=inf)
                kept = [choice for _, choice in bounded.layouts.choices(space, place)]
                found = min((bounded.exact(placed, each) or inf for each in kept), default=inf)
                assert found == pytest.approx(least, rel=1e-9)
                num_compared += least < inf
    assert num_compared > 2


def test_what_is_left_out_of_a_space_does_not_fit() -> None:
    num_compared = 0
    for problem, placement in jobs(9, 60):
        bounded = Bounded(problem)
        for wide in bounded.layouts.every(placement):
            if wide.narrowed() is not None:
                continue
            for place in some_layouts(Random(0), wide)[:1]:
                try:
                    placed = place_job(problem, wide.places(place))
                except (PlanError, ManifestError):
                    continue
                num_compared += 1
                for ways in zip(*bounded.layouts.role_ways(wide, place), strict=False):
                    choice = bounded.layouts.memory_choice(wide, ways)
                    assert bounded.exact(placed, choice) is None
    assert num_compared > 5
