"""The search for a problem's fastest plan, over its own placement or over all of them, next to the
baselines. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from math import inf

from rlhf_api.plan import Plan, Pool
from rlhf_api.plan_estimate import PlanSearch
from rlhf_api.spec.placement import PlacementType
from rlhf_planner.baselines.all import baselines
from rlhf_planner.baselines.realhf import real_heuristic
from rlhf_planner.baselines.rule import Baseline
from rlhf_planner.candidates.completions import devices_only
from rlhf_planner.candidates.placements import (
    Allows,
    PlacementUnit,
    allow_all,
    block_sizes,
    placements,
)
from rlhf_planner.candidates.used_devices import parts_with_own_blocks, smaller_parts
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import with_estimate
from rlhf_planner.feasibility import requested_placement
from rlhf_planner.placement.strategy import JobStrategy
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.branch_and_bound import LazyFamily, SearchResult, find_plan
from rlhf_planner.search.pool_size_bounds import PoolSizeBounds
from rlhf_planner.stage_fusion.choice import (
    fastest_fusion,
    fastest_with_requested_fusion,
    fusion_reason,
)


@dataclass(frozen=True)
class Search:
    """A search that has ended."""

    problem: PlanningProblem
    hardware: Mapping[str, Hardware]
    """Hardware of each pool's devices."""
    result: SearchResult
    """The fastest plan, and a bound."""
    others: tuple[Baseline, ...]
    """Plans of simpler rules."""


def run_search(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    max_candidates: int,
    below_seconds: float = inf,
    may_idle: bool = True,
) -> Search:
    """Search the fastest plan on the devices of a problem.

    Args:
        hardware: of the devices of each pool.
        max_candidates: limit of strategies that are checked against memory.
        below_seconds: only plans with shorter steps are searched for.
        may_idle: True if a plan may leave devices without any role.

    Raises:
        PlanError, ManifestError: a placement that the manifest fixes is impossible.
    """
    others = baselines(problem, hardware)
    incumbents = [baseline.job for baseline in others if baseline.job is not None]
    bounds = PoolSizeBounds(problem, hardware)
    is_free = problem.fixed.placement.type is PlacementType.AUTO
    result = find_plan(
        problem,
        hardware,
        placement_family(problem),
        incumbents,
        max_candidates,
        below_seconds,
        bounds.times,
        _smaller_families(problem, bounds) if is_free and may_idle else (),
    )
    return Search(problem, hardware, result, others)


def placement_family(
    problem: PlanningProblem,
    block_devices: Mapping[str, int] | None = None,
    allows: Allows = allow_all,
) -> tuple[JobStrategy, ...]:
    """The placements that are compared: the fixed one, or all of them and that of ReaL's rule."""
    if problem.fixed.placement.type is not PlacementType.AUTO:
        return (requested_placement(problem),)
    family = tuple(placements(problem, block_devices=block_devices, allows=allows))
    # ReaL's sets overlap, which no placement of the family does. With it every incumbent belongs to
    # the family, and a proof of optimality does not depend on memory. The rule assumes one pool.
    return family if len(problem.pools) > 1 else (*family, devices_only(real_heuristic(problem)))


def _smaller_families(problem: PlanningProblem, bounds: PoolSizeBounds) -> Iterator[LazyFamily]:
    """Placements that leave devices idle, those on most devices first."""

    def blocks_of(pools: Sequence[Pool]) -> Mapping[str, int]:
        return block_sizes(replace(problem, pools=tuple(pools)))

    parts = smaller_parts(problem.pools, block_sizes(problem))
    for part in chain(parts, parts_with_own_blocks(problem.pools, blocks_of)):
        smaller = replace(problem, pools=part.pools)
        yield LazyFamily(
            partial(bounds.step_seconds, smaller, part.block_devices),
            partial(_smaller_family, smaller, bounds, part.block_devices),
        )


def _smaller_family(
    problem: PlanningProblem,
    bounds: PoolSizeBounds,
    block_devices: Mapping[str, int] | None,
    below_seconds: float,
) -> tuple[JobStrategy, ...]:
    """The placements of a part of the pools on which no device is busy for longer."""

    def allows(
        units: Sequence[PlacementUnit],
        pool: Pool,
        devices: int,
        everywhere: Sequence[PlacementUnit],
    ) -> bool:
        # Sets are excluded one by one: most placements are never listed.
        busy = bounds.busy_seconds(units, pool.name, devices)
        if everywhere:
            busy += bounds.busy_seconds(everywhere, pool.name, pool.num_devices)
        return busy < below_seconds

    return placement_family(problem, block_devices, allows)


def plan_of_search(search: Search) -> Plan:
    """Build the plan of a search that found one, with its times. Stages overlap where this shortens
    a step."""
    result, others = search.result, search.others
    assert result.fitted is not None, "a plan was found"
    feasible = [baseline.job for baseline in others if baseline.job is not None]
    # A plan that is slower without a fusion may be the fastest with one.
    unfused = [build_plan(job) for job in (result.fitted, *feasible, *result.split)]
    fused = fastest_fusion(search.problem, search.hardware, unfused, result.step_seconds)
    if fused is not None:
        plan = fused.plan
    else:
        plan = fastest_with_requested_fusion(search.problem, search.hardware, unfused)
    plan_search = PlanSearch(
        num_placements=result.num_placements,
        bound_seconds=result.bound_seconds,
        is_optimal=result.is_optimal,
        unfused_seconds=None if fusion_of(plan) is None else result.step_seconds,
        alternatives=tuple(baseline.alternative for baseline in others),
    )
    reasons = [_reason(plan_search)]
    if fused is not None:
        reasons.append(fusion_reason(fused, result.step_seconds))
    plan = with_estimate(search.problem, plan)
    reasons += plan.reasons
    return plan.model_copy(update={"search": plan_search, "reasons": tuple(reasons)})


def _reason(search: PlanSearch) -> str:
    """The sentence that says how good the plan is."""
    number = search.num_placements
    family = f"the fastest of {number} placements" if number > 1 else "the fastest way to compute"
    what = "none of them takes less"
    if search.unfused_seconds is not None:
        family = f"without a stage fusion it is {family}, {search.unfused_seconds:.4g} s a step"
    if search.is_optimal:
        return f"{family}, by the times that are expected: proved, {what}"
    return (
        f"{family} as far as it was searched, by the times that are expected: none of them takes "
        f"less than {search.bound_seconds:.4g} s"
    )
