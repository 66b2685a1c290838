"""The number of devices that a plan uses, if the objective leaves it open. Pure and deterministic.

Best-first over sizes of the pools, as in branch_and_bound.py: sizes wait by the best score that
their plans can reach (pool_size_bounds.py). Each search only looks for plans that score better than
the incumbent. The search ends when the next size cannot score better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, inf, log10

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import ComparedSize, PoolPart
from rlhf_api.spec.objective import ObjectiveType
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import PlanError, StepTooLong
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.search.pool_size import (
    WORST,
    MinStepTime,
    Objective,
    describe_pools,
    num_devices,
    objective_of,
    pool_subsets,
)
from rlhf_planner.search.pool_size_bounds import PoolSizeBounds
from rlhf_planner.search.search import Search, plan_of_search, run_search
from rlhf_planner.timeline.rows import format_time

# Searches the fastest plan on a size of the pools, among plans below a step time. None: what the
# manifest fixes is impossible there.
SearchPart = Callable[[PlanningProblem, float], Search | None]


@dataclass(frozen=True)
class PoolCandidate:
    """A size of the pools, and the result of its search."""

    problem: PlanningProblem
    """The problem with only these devices."""
    bound_seconds: float
    """Lower bound on the plans that were searched for; infinite if none is possible."""
    search: Search | None = None
    """The search on this size. None: it was not needed."""

    @property
    def devices(self) -> int:
        """Number of devices."""
        return num_devices(self.problem.pools)

    @property
    def step_seconds(self) -> float:
        """Step time of the plan; infinite without one."""
        return inf if self.search is None else self.search.result.step_seconds


@dataclass(frozen=True)
class PoolSearchResult:
    """The result of comparing sizes."""

    best: PoolCandidate | None
    """The size with the best plan. None: there is no plan."""
    candidates: tuple[PoolCandidate, ...]
    """All sizes, fewest devices first."""
    is_proved: bool
    """True if no size of the family has a plan that scores better."""


def search_pool_sizes(
    candidates: Sequence[PoolCandidate], objective: Objective, search: SearchPart
) -> PoolSearchResult:
    """Find the best size.

    Args:
        candidates: the sizes, with their bounds.
        objective: the objective that compares them.
        search: searches the plan of one size.
    """
    best, best_score, searched = None, WORST, list(candidates)

    def lower_bound(number: int) -> tuple[float, float]:
        return objective.score(searched[number].devices, searched[number].bound_seconds)

    for number in sorted(range(len(candidates)), key=lower_bound):
        candidate = candidates[number]
        # Sizes are in the order of their bounds, so no later size can score better.
        if lower_bound(number) >= best_score:
            break
        below = objective.below_seconds(candidate.devices, best_score)
        result_ = search(candidate.problem, below)
        # The bound of a searched size rises, which the proof below uses.
        searched[number] = candidate = _with_search(candidate, result_)
        score = objective.score(candidate.devices, candidate.step_seconds)
        if score < best_score:
            best, best_score = candidate, score
    # A search that ended at its limit has a bound below its plan: a better one is possible.
    is_proved = all(lower_bound(number) >= best_score for number in range(len(candidates)))
    return PoolSearchResult(best, tuple(searched), is_proved)


def _with_search(candidate: PoolCandidate, search: Search | None) -> PoolCandidate:
    if search is None:
        return replace(candidate, bound_seconds=inf)  # no plan is possible on this size
    bound = max(candidate.bound_seconds, search.result.bound_seconds)
    # Both bounds hold, so the larger one counts, but never more than the plan's own time.
    return replace(candidate, bound_seconds=min(bound, search.result.step_seconds), search=search)


# Sizes that a plan lists.
MAX_SHOWN_SIZES = 64
# Calls that a refusal names.
MAX_SHOWN_CALLS = 4


def plan_on_best_size(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], max_candidates: int
) -> Plan | None:
    """Find the best plan by the objective, on the best number of devices.

    Args:
        problem: the planning problem, with all devices.
        hardware: of the devices of each pool.
        max_candidates: limit of strategies per number of devices.

    Returns:
        None: the job can be planned on no number of devices.

    Raises:
        StepTooLong: steps exceed the objective's limit on every number of devices.
    """

    def search(part: PlanningProblem, below_seconds: float) -> Search | None:
        try:
            return run_search(part, hardware, max_candidates, below_seconds, may_idle=False)
        except (PlanError, ManifestError):  # the manifest fixes what is impossible on these devices
            return None

    requested = problem.fixed.placement.objective
    objective = objective_of(requested)
    result = search_pool_sizes(_candidates(problem, hardware), objective, search)
    # No plan keeps the limit: the refusal names the shortest step. The bounds still hold.
    if result.best is None and requested.type is ObjectiveType.FEWEST_DEVICES:
        result = search_pool_sizes(result.candidates, MinStepTime(), search)
        if result.best is None:
            return None
        if objective.score(result.best.devices, result.best.step_seconds) == WORST:
            raise _too_long(problem, result)
        # The first search ended at its limit, before it reached this plan: nothing is proved.
        result = replace(result, is_proved=False)
    return None if result.best is None else _chosen_plan(problem, result)


def _candidates(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> list[PoolCandidate]:
    """Every size of the pools, with its bound."""
    bounds = PoolSizeBounds(problem, hardware)
    # The bounds cover the family's placements. A fixed placement may lie outside: its bound is 0.
    is_free = problem.fixed.placement.type is PlacementType.AUTO
    problems = (replace(problem, pools=pools) for pools in pool_subsets(problem.pools))
    return [
        PoolCandidate(problem_, bounds.step_seconds(problem_) if is_free else 0.0)
        for problem_ in problems
    ]


def _chosen_plan(problem: PlanningProblem, result: PoolSearchResult) -> Plan:
    assert result.best is not None and result.best.search is not None
    plan = plan_of_search(result.best.search)
    assert plan.search is not None
    search = plan.search.model_copy(update={"sizes": _compared(problem, result)})
    reasons = (_reason(problem, result), *plan.reasons)
    return plan.model_copy(update={"search": search, "reasons": reasons})


def _compared(problem: PlanningProblem, result: PoolSearchResult) -> tuple[ComparedSize, ...]:
    """The comparison for the plan; of very many sizes those that come closest."""
    objective = objective_of(problem.fixed.placement.objective)

    def closeness(candidate: PoolCandidate) -> tuple[bool, tuple[float, float]]:
        return candidate.search is None, objective.score(candidate.devices, candidate.bound_seconds)

    shown = sorted(result.candidates, key=closeness)[:MAX_SHOWN_SIZES]
    return tuple(
        _size(candidate)
        for candidate in result.candidates
        # By identity: equality would compare complete problems.
        if any(candidate is shown_candidate for shown_candidate in shown)
    )


def _size(candidate: PoolCandidate) -> ComparedSize:
    return ComparedSize(
        pools=tuple(
            PoolPart(name=pool.name, nodes=pool.nodes, devices_per_node=pool.devices_per_node)
            for pool in candidate.problem.pools
        ),
        step_seconds=_finite(candidate.step_seconds),
        bound_seconds=_finite(candidate.bound_seconds),
    )


def _finite(seconds: float) -> float | None:
    return seconds if seconds < inf else None


def _reason(problem: PlanningProblem, result: PoolSearchResult) -> str:
    """The sentence that says why the plan uses this many devices."""
    requested, best = problem.fixed.placement.objective, result.best
    assert best is not None
    devices = (
        f"{best.devices} of {num_devices(problem.pools)} devices "
        f"({describe_pools(best.problem.pools)}), as placement.objective "
        f"{requested.type.value} says"
    )
    compared = f"{len(result.candidates)} sizes that were compared"
    if requested.type is ObjectiveType.DEVICE_TIME:
        product = best.devices * best.step_seconds
        why = f"{product:,.4g} device-seconds a step, the least of {compared}"
        claim = "none takes less"
    else:
        limit = f"{requested.max_step_seconds:,.4g} s"
        why = f"the fewest, of {compared}, on which a step takes at most {limit}"
        claim = "on fewer it takes longer"
    if result.is_proved:
        return f"{devices}: {why}; proved by the times that are expected, {claim}"
    return f"{devices}: {why}, as far as it was searched; that {claim} is not proved"


def _too_long(problem: PlanningProblem, shortest: PoolSearchResult) -> StepTooLong:
    """The refusal of a step time that no size reaches, and what would help."""
    requested, best = problem.fixed.placement.objective, shortest.best
    assert best is not None and best.search is not None
    estimate = plan_of_search(best.search).estimate
    assert estimate is not None
    longest = sorted(estimate.calls, key=lambda call: -call.seconds)[:MAX_SHOWN_CALLS]
    calls = ", ".join(f"{call.call} {format_time(call.seconds)}" for call in longest)
    total = num_devices(problem.pools)
    caveat = "" if shortest.is_proved else ", as far as it was searched"
    error = StepTooLong(
        "no number of devices is enough for placement.objective.maxStepSeconds, by steps without "
        "a stage fusion: got "
        f"{best.step_seconds:,.4g} s for the shortest step that was found{caveat}, on "
        f"{best.devices} of {total} devices ({describe_pools(best.problem.pools)}; its longest "
        f"calls: {calls}), allowed {requested.max_step_seconds:,.4g} s; "
        + "; or ".join(_what_helps(problem, best))
    )
    return error.at("spec", "placement", "objective", "maxStepSeconds")


def _what_helps(problem: PlanningProblem, candidate: PoolCandidate) -> Iterator[str]:
    placement, total = problem.fixed.placement, num_devices(problem.pools)
    yield f"raise it to at least {_rounded_up(candidate.step_seconds):g}"
    if candidate.devices == total:
        limit = placement.max_devices
        yield "raise placement.maxDevices" if limit else "give resources.nodePools more nodes"
    yield "give a step less work (schedule.promptsPerStep, rollout.samplesPerPrompt)"
    if placement.type is not PlacementType.AUTO:
        yield "write placement.type: Auto"


def _rounded_up(seconds: float, digits: int = 3) -> float:
    """Round up to few digits."""
    unit = 10.0 ** (ceil(log10(seconds)) - digits)
    # Formatting removes the rounding error of the product.
    return float(f"{ceil(seconds / unit) * unit:.{digits + 1}g}")
