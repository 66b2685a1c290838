"""Lower bounds against plans: random jobs, and random strategies of their placements."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import inf
from random import Random
from typing import Any

import pytest

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import PlanError
from rlhf_planner.bounds.calls import CallTimeBounds
from rlhf_planner.bounds.memory import MemoryBounds
from rlhf_planner.candidates.placements import placements
from rlhf_planner.cost.collectives import Links
from rlhf_planner.evaluate import Estimate, evaluate, hardware_of_pools
from rlhf_planner.feasibility import apply_placement, check_feasible, requested_placement
from rlhf_planner.placement.strategy import JobStrategy, RoleStrategy
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import ConversationWorkload, PlanningProblem
from rlhf_planner.search.node_bounds import Relaxation
from rlhf_planner.search.search_space import Candidate, Domains, SearchSpace

from ..plan_checker.random_jobs import random_problem
from .searched_jobs import gpus, ppo

Chosen = tuple[Candidate, ...]


class Bounded:
    """A problem with its bounds."""

    def __init__(self, problem: PlanningProblem) -> None:
        self.problem, self.hardware = problem, hardware_of_pools(problem.pools)
        links = {p.name: Links(self.hardware[p.name], p.devices_per_node) for p in problem.pools}
        self.times = CallTimeBounds(problem, links)
        self.relaxation = Relaxation(problem, self.times, MemoryBounds(problem))

    def estimate(self, strategy: JobStrategy) -> Estimate | None:
        """Times of a plan. None: it does not fit, or no runtime executes it."""
        try:
            fitted = check_feasible(apply_placement(self.problem, strategy), strategy.roles)
        except (PlanError, ManifestError):
            return None
        return evaluate(self.problem, build_plan(fitted), self.hardware)

    def exact(self, space: SearchSpace, chosen: Chosen) -> float:
        """Seconds of a plan; infinite if there is none."""
        found = self.estimate(strategy_of(space, chosen))
        return inf if found is None else found.step_seconds

    def step(self, space: SearchSpace, domains: Domains) -> float | None:
        """Bound of a node. None: nothing below it fits."""
        part = replace(space, domains=domains).propagated()
        if part is None:
            return None
        seconds = self.relaxation.space_bounds(part)
        return self.times.steps.step_seconds(space.placement, seconds, space.orders)


def jobs(seed: int, number: int) -> Iterator[tuple[PlanningProblem, JobStrategy]]:
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


def single(chosen: Chosen) -> Domains:
    return tuple((candidate,) for candidate in chosen)


def strategy_of(space: SearchSpace, chosen: Chosen) -> JobStrategy:
    return replace(space, domains=single(chosen)).strategy


def completed(random: Random, chosen: Chosen) -> Chosen:
    return tuple(random.choice(candidate.completions or (candidate,)) for candidate in chosen)


def some_cuts(random: Random, space: SearchSpace, number: int) -> list[Chosen]:
    """Some choices of a cut for each role and of a size for each engine."""
    return [tuple(map(random.choice, space.domains)) for _ in range(number)]


def leaves(space: SearchSpace | None) -> Iterator[Chosen]:
    if space is not None and space.is_complete:
        yield tuple(candidate for (candidate,) in space.domains)
    elif space is not None:
        for part in space.branches():
            yield from leaves(part)


def num_bounded(random: Random, problem: PlanningProblem, placement: JobStrategy) -> int:
    """The number of plans that are compared with their bounds."""
    bounded, num_compared = Bounded(problem), 0
    of_roles = bounded.relaxation.placement_bounds(placement)
    for space in bounded.relaxation.spaces(placement):
        for cuts in some_cuts(random, space, 9):
            chosen = completed(random, cuts)
            exact = bounded.exact(space, chosen)
            if exact == inf:
                continue
            assert space.pruned() is not None and of_roles is not None
            bounds = [bounded.times.steps.step_seconds(placement, of_roles)]
            for count in range(len(cuts) + 1):
                for first, rest in ((cuts, space.domains), (chosen, single(cuts))):
                    domains = (*single(first[:count]), *rest[count:])
                    bound = bounded.step(space, domains)
                    assert bound is not None
                    bounds.append(bound)
            assert all(bound <= exact * (1 + 1e-9) for bound in bounds)
            num_compared += 1
    return num_compared


@pytest.mark.parametrize("seed", range(4))
def test_no_plan_is_below_its_bounds_and_no_feasible_plan_is_pruned(seed: int) -> None:
    random = Random(seed)
    assert sum(num_bounded(random, *each) for each in jobs(seed, 20)) > 20


@pytest.mark.parametrize("seed", range(2))
def test_no_plan_of_conversations_is_below_its_bounds(seed: int) -> None:
    """Whatever their turns, tools and limits, and wherever in its node an engine is."""
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(90 + seed, 16):
        workload = replace(problem.workload, conversations=conversations(random))
        num_compared += num_bounded(random, replace(problem, workload=workload), placement)
    assert num_compared > 20


def conversations(random: Random) -> ConversationWorkload:
    max_turns = random.choice([2, 8, 30])
    return ConversationWorkload(
        turns=random.uniform(1, max_turns),
        max_turns=max_turns,
        sampled_share=random.uniform(0.1, 1),
        tool_seconds=random.choice([0.0, 0.01, 0.3, 5.0]),
        delay_steps=random.choice([1, 16, 200, None]),
        concurrency=random.choice([1, 16, 256]),
    )


@pytest.mark.parametrize("seed", range(2))
def test_no_strategy_that_is_left_out_is_faster(seed: int) -> None:
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(40 + seed, 12):
        bounded = Bounded(problem)
        for space in bounded.relaxation.feasible_spaces(placement):
            (cuts,) = some_cuts(random, space, 1)
            every = list(product(*(candidate.completions or (candidate,) for candidate in cuts)))
            if len(every) > 100:
                continue
            fastest = min(bounded.exact(space, chosen) for chosen in every)
            kept = leaves(replace(space, domains=single(cuts)).propagated())
            found = min((bounded.exact(space, chosen) for chosen in kept), default=inf)
            assert found == pytest.approx(fastest, rel=1e-9)
            num_compared += fastest < inf
    assert num_compared > 2


def test_pruned_spaces_have_no_feasible_strategy() -> None:
    random, num_compared = Random(0), 0
    for problem, placement in jobs(9, 60):
        bounded = Bounded(problem)
        for wide in bounded.relaxation.spaces(placement):
            if wide.pruned() is None:
                for cuts in some_cuts(random, wide, 3):
                    assert bounded.exact(wide, completed(random, cuts)) == inf
                    num_compared += 1
    assert num_compared > 5


@pytest.mark.parametrize("seed", range(2))
def test_the_bound_of_a_complete_strategy_is_its_price(seed: int) -> None:
    """To the last bit, of all calls but copies, whose bytes do not count, and of generation, whose
    cache the other roles decide."""
    random, num_compared = Random(seed), 0
    for problem, placement in jobs(70 + seed, 20):
        bounded, graph = Bounded(problem), problem.graphs[GraphName.STEP]
        for space in bounded.relaxation.feasible_spaces(placement):
            for cuts in some_cuts(random, space, 3):
                chosen = completed(random, cuts)
                estimate = bounded.estimate(strategy_of(space, chosen))
                if estimate is None:
                    continue
                priced = {
                    call.id
                    for call in graph.calls
                    if call.kind in (CallKind.TRAIN, CallKind.INFER, CallKind.COMPUTE)
                }
                bounds = {c: s for candidate in chosen for c, s in candidate.seconds.items()}
                for call in priced:
                    assert bounds[call] == estimate.calls[call].total
                    num_compared += 1
    assert num_compared > 20


def test_a_role_without_calls_in_a_step_takes_no_time_and_still_must_fit(job: Any) -> None:
    """Such as one that only an evaluation uses."""
    problem = ppo(job, gpus(2))
    idle = replace(problem.models["reference"], role="idle")
    for gibibytes, seconds in ((80, {}), (1, None)):
        pools = (gpus(2, 1, gibibytes),)
        with_idle = replace(problem, pools=pools, models={**problem.models, "idle": idle})
        devices = RoleStrategy(Mesh(pool="pool", data=2))
        assert Bounded(with_idle).times.role_seconds("idle", devices) == seconds
