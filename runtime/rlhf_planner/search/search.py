"""A problem's fastest plan among those of its placement, or of all placements; with what simpler
rules choose. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import PlanSearch
from rlhf_api.spec.placement import PlacementType
from rlhf_planner.baselines.all import baselines
from rlhf_planner.baselines.real import real_heuristic
from rlhf_planner.baselines.rule import Baseline
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import with_estimate
from rlhf_planner.feasibility import places_of
from rlhf_planner.overlap.choice import (
    fastest_as_told,
    fastest_fusion,
    fusion_reason,
)
from rlhf_planner.plan_builder import fitted_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.branch_and_bound import Found, find_plan
from rlhf_planner.strategies.parallelism import uncut
from rlhf_planner.strategies.placements import Placement, placements


@dataclass(frozen=True)
class Searched:
    """What came of a search."""

    problem: PlanningProblem
    """What was planned."""
    hardware: Mapping[str, Hardware]
    """Of the devices of each pool."""
    found: Found
    """The fastest plan, and a bound."""
    others: tuple[Baseline, ...]
    """What simpler rules choose."""


def search_problem(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    most_fitted: int,
    below_seconds: float = inf,
) -> Searched:
    """Look for the fastest plan on all devices of a problem.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        most_fitted: ways to compute that are fitted into memory, at most.
        below_seconds: only plans with shorter steps are looked for.

    Raises:
        PlanError, ManifestError: a placement that is decided cannot be.
    """
    others = baselines(problem, hardware)
    fitted = [each.fitted for each in others if each.fitted is not None]
    found = find_plan(problem, hardware, _family(problem), fitted, most_fitted, below_seconds)
    return Searched(problem, hardware, found, others)


def _family(problem: PlanningProblem) -> tuple[Placement, ...]:
    """The placements that are compared: all of them where it is left to the planner, and that of
    ReaL's rule, whose sets overlap. So every plan from which the search starts is of the family,
    and what is proved does not depend on the memory by which rules choose."""
    if problem.fixed.placement.type is not PlacementType.AUTO:
        return (places_of(problem),)
    found = tuple(placements(problem))
    return found if len(problem.pools) > 1 else (*found, uncut(real_heuristic(problem)))


def searched_plan(searched: Searched) -> Plan:
    """The plan that was found, which must be there, with its times and how it was found; one whose
    stages overlap where its steps are shorter so."""
    found, others = searched.found, searched.others
    assert found.fitted is not None, "a plan was found"
    known = [each.fitted for each in others if each.fitted is not None]
    unfused = [fitted_plan(each) for each in (found.fitted, *known, *found.apart)]
    fused = fastest_fusion(searched.problem, searched.hardware, unfused, found.step_seconds)
    if fused is not None:
        plan = fused.plan
    else:
        plan = fastest_as_told(searched.problem, searched.hardware, unfused)
    search = PlanSearch(
        num_placements=found.num_placements,
        bound_seconds=found.bound_seconds,
        is_optimal=found.is_optimal,
        unfused_seconds=None if fusion_of(plan) is None else found.step_seconds,
        alternatives=tuple(each.alternative for each in others),
    )
    reasons = [_reason(search)]
    if fused is not None:
        reasons.append(fusion_reason(fused, found.step_seconds))
    plan = with_estimate(searched.problem, plan)
    reasons += plan.reasons
    return plan.model_copy(update={"search": search, "reasons": tuple(reasons)})


def _reason(search: PlanSearch) -> str:
    """How good the plan is."""
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
