"""How many devices a plan takes, where that is free: the part of the pools on which its plan is
best. Pure and deterministic.

Best first, as `find_plan` is: parts wait by the score that their plans may have at best
(size_bounds.py). A part is searched for plans that score better than the best so far, and for no
others; when the next part cannot score better, the best is the best of all.

The plan of a job that need not take all devices: how many, and why these. Pure.
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
    LeastStepTime,
    Objective,
    describe_pools,
    num_devices,
    objective_of,
    sizes_of,
)
from rlhf_planner.search.pool_size_bounds import SizeBounds
from rlhf_planner.search.search import Searched, search_problem, searched_plan
from rlhf_planner.timeline.rows import format_time

SearchPart = Callable[[PlanningProblem, float], Searched | None]
"""Looks for the fastest plan on a part whose steps take less than so many seconds. None: what is
decided cannot be there."""


@dataclass(frozen=True)
class Part:
    """A part of the pools, and what is known of its plans."""

    problem: PlanningProblem
    """With these devices only."""
    bound_seconds: float
    """No plan on it that was looked for takes less; infinite where none is possible."""
    searched: Searched | None = None
    """The search there. None: it was not needed."""

    @property
    def devices(self) -> int:
        """How many."""
        return num_devices(self.problem.pools)

    @property
    def step_seconds(self) -> float:
        """Of the plan that was found; infinite without one."""
        return inf if self.searched is None else self.searched.found.step_seconds


@dataclass(frozen=True)
class SizeFound:
    """What came of comparing parts."""

    best: Part | None
    """That with the best plan. None: there is no plan."""
    parts: tuple[Part, ...]
    """All of them, those of fewer devices first."""
    is_proved: bool
    """Whether no part of the family has a plan that scores better."""


def find_size(parts: Sequence[Part], objective: Objective, search: SearchPart) -> SizeFound:
    """The best part.

    Args:
        parts: with their bounds.
        objective: by which they are compared.
        search: finds the plan of one.
    """
    best, best_score, known = None, WORST, list(parts)

    def least(number: int) -> tuple[float, float]:
        return objective.score(known[number].devices, known[number].bound_seconds)

    for number in sorted(range(len(parts)), key=least):
        part = parts[number]
        if least(number) >= best_score:
            break
        below = objective.below_seconds(part.devices, best_score)
        searched = search(part.problem, below)
        known[number] = part = _with_search(part, searched)
        score = objective.score(part.devices, part.step_seconds)
        if score < best_score:
            best, best_score = part, score
    is_proved = all(least(number) >= best_score for number in range(len(parts)))
    return SizeFound(best, tuple(known), is_proved)


def _with_search(part: Part, searched: Searched | None) -> Part:
    if searched is None:
        return replace(part, bound_seconds=inf)
    bound = max(part.bound_seconds, searched.found.bound_seconds)
    return replace(part, bound_seconds=min(bound, searched.found.step_seconds), searched=searched)


MOST_SHOWN = 64
"""Sizes that stand in a plan."""
MOST_CALLS = 4
"""Calls that a refusal names."""


def plan_of_a_part(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], most_fitted: int
) -> Plan | None:
    """The plan that is best by the objective, on as many devices as are best for it.

    Args:
        problem: what is planned, with all devices.
        hardware: of the devices of each pool.
        most_fitted: ways to compute that the search of each number of devices fits into memory.

    Returns:
        None: the job can be planned on no number of devices.

    Raises:
        StepTooLong: steps take longer than the objective allows on every number of them.
    """

    def search(part: PlanningProblem, below_seconds: float) -> Searched | None:
        try:
            return search_problem(part, hardware, most_fitted, below_seconds)
        except (PlanError, ManifestError):  # what is decided cannot be on so many
            return None

    asked = problem.fixed.placement.objective
    objective = objective_of(asked)
    found = find_size(_parts(problem, hardware), objective, search)
    if found.best is None and asked.type is ObjectiveType.FEWEST_DEVICES:
        found = find_size(found.parts, LeastStepTime(), search)
        if found.best is None:
            return None
        if objective.score(found.best.devices, found.best.step_seconds) == WORST:
            raise _too_long(problem, found)
        found = replace(found, is_proved=False)  # the first search ended before it came to this
    return None if found.best is None else _chosen_plan(problem, found)


def _parts(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> list[Part]:
    """Every number of devices, with a bound where placements are free."""
    bounds = SizeBounds(problem, hardware)
    is_free = problem.fixed.placement.type is PlacementType.AUTO
    made = (replace(problem, pools=pools) for pools in sizes_of(problem.pools))
    return [Part(part, bounds.step_seconds(part) if is_free else 0.0) for part in made]


def _chosen_plan(problem: PlanningProblem, found: SizeFound) -> Plan:
    assert found.best is not None and found.best.searched is not None
    plan = searched_plan(found.best.searched)
    assert plan.search is not None
    search = plan.search.model_copy(update={"sizes": _compared(problem, found)})
    reasons = (_reason(problem, found), *plan.reasons)
    return plan.model_copy(update={"search": search, "reasons": reasons})


def _compared(problem: PlanningProblem, found: SizeFound) -> tuple[ComparedSize, ...]:
    """What is known of each size; of very many those that come closest."""
    objective = objective_of(problem.fixed.placement.objective)

    def closeness(part: Part) -> tuple[bool, tuple[float, float]]:
        return part.searched is None, objective.score(part.devices, part.bound_seconds)

    shown = sorted(found.parts, key=closeness)[:MOST_SHOWN]
    return tuple(_size(part) for part in found.parts if any(part is each for each in shown))


def _size(part: Part) -> ComparedSize:
    return ComparedSize(
        pools=tuple(
            PoolPart(name=pool.name, nodes=pool.nodes, devices_per_node=pool.devices_per_node)
            for pool in part.problem.pools
        ),
        step_seconds=_finite(part.step_seconds),
        bound_seconds=_finite(part.bound_seconds),
    )


def _finite(seconds: float) -> float | None:
    return seconds if seconds < inf else None


def _reason(problem: PlanningProblem, found: SizeFound) -> str:
    """Why it takes so many devices."""
    asked, best = problem.fixed.placement.objective, found.best
    assert best is not None
    taken = (
        f"{best.devices} of {num_devices(problem.pools)} devices "
        f"({describe_pools(best.problem.pools)}), as placement.objective {asked.type.value} says"
    )
    compared = f"{len(found.parts)} sizes that were compared"
    if asked.type is ObjectiveType.DEVICE_TIME:
        product = best.devices * best.step_seconds
        why = f"{product:,.4g} device-seconds a step, the least of {compared}"
        what = "none takes less"
    else:
        limit = f"{asked.max_step_seconds:,.4g} s"
        why = f"the fewest, of {compared}, on which a step takes at most {limit}"
        what = "on fewer it takes longer"
    if found.is_proved:
        return f"{taken}: {why}; proved by the times that are expected, {what}"
    return f"{taken}: {why}, as far as it was searched; that {what} is not proved"


def _too_long(problem: PlanningProblem, shortest: SizeFound) -> StepTooLong:
    """The arithmetic of a limit that no size keeps, and what would help."""
    asked, best = problem.fixed.placement.objective, shortest.best
    assert best is not None and best.searched is not None
    estimate = searched_plan(best.searched).estimate
    assert estimate is not None
    longest = sorted(estimate.calls, key=lambda call: -call.seconds)[:MOST_CALLS]
    calls = ", ".join(f"{each.call} {format_time(each.seconds)}" for each in longest)
    total = num_devices(problem.pools)
    at_least = "" if shortest.is_proved else ", as far as it was searched"
    error = StepTooLong(
        "no number of devices is enough for placement.objective.maxStepSeconds, by steps without "
        "a stage fusion: got "
        f"{best.step_seconds:,.4g} s for the shortest step that was found{at_least}, on "
        f"{best.devices} of {total} devices ({describe_pools(best.problem.pools)}; its longest "
        f"calls: {calls}), allowed {asked.max_step_seconds:,.4g} s; "
        + "; or ".join(_what_helps(problem, best))
    )
    return error.at("spec", "placement", "objective", "maxStepSeconds")


def _what_helps(problem: PlanningProblem, best: Part) -> Iterator[str]:
    placement, total = problem.fixed.placement, num_devices(problem.pools)
    yield f"raise it to at least {_rounded_up(best.step_seconds):g}"
    if best.devices == total:
        limit = placement.max_devices
        yield "raise placement.maxDevices" if limit else "give resources.nodePools more nodes"
    yield "give a step less work (schedule.promptsPerStep, rollout.samplesPerPrompt)"
    if placement.type is not PlacementType.AUTO:
        yield "write placement.type: Auto"


def _rounded_up(seconds: float, digits: int = 3) -> float:
    """Not below, of few digits."""
    unit = 10.0 ** (ceil(log10(seconds)) - digits)
    return float(f"{ceil(seconds / unit) * unit:.{digits + 1}g}")
