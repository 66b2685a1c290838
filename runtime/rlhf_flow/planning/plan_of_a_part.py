"""The plan of a job that need not take all devices: how many, and why these. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import ceil, inf, log10

from rlhf_api.errors import ManifestError
from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import ComparedSize, PoolPart
from rlhf_api.spec.objective import ObjectiveType
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import PlanError, StepTooLong
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.find_size import Part, SizeFound, find_size
from rlhf_flow.planning.search.objectives import WORST, LeastStepTime, objective_of
from rlhf_flow.planning.search.pool_sizes import describe_pools, num_devices, sizes_of
from rlhf_flow.planning.search.searched import Searched, search_problem, searched_plan
from rlhf_flow.planning.search.size_bounds import SizeBounds
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.timeline_rows import format_time

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
