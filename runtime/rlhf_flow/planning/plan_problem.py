"""From what is planned to its plan: on GPUs whose speed is known the fastest that is found, else
the first way to compute that fits."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import Plan
from rlhf_api.plan_estimate import PlanSearch
from rlhf_api.spec.placement import PlacementType
from rlhf_api.spec.resources import Device
from rlhf_flow.errors import DevicesUnknown, DoesNotFit
from rlhf_flow.planning.baselines.all_baselines import baselines
from rlhf_flow.planning.baselines.baseline import Baseline
from rlhf_flow.planning.baselines.real_heuristic import real_heuristic
from rlhf_flow.planning.estimate.evaluate import hardware_of_pools, with_estimate
from rlhf_flow.planning.first_that_fits import first_that_fits
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import places_of
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.fastest_fusion import fastest_fusion, fusion_reason
from rlhf_flow.planning.search.find_plan import MAX_FITTED, Found, find_plan
from rlhf_flow.planning.search.layouts import uncut
from rlhf_flow.planning.search.placements import Placement, placements
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.served import check_served
from rlhf_flow.planning.stage_fusion.best_fusion import FusedStep


def plan_problem(problem: PlanningProblem, most_fitted: int = MAX_FITTED) -> Plan:
    """The plan of a job.

    Args:
        problem: what is planned.
        most_fitted: ways to compute that a search fits into memory, at most.

    Raises:
        DevicesUnknown: several pools, of which one's speed is not known, and a placement that is
            left to the planner.
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, weights that would be
            copied between devices or engines, or a model that no engine serves.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    hardware = _known_hardware(problem)
    if hardware is None:
        return with_estimate(problem, fitted_plan(first_that_fits(problem)))
    return _fastest_plan(problem, hardware, most_fitted)


def _known_hardware(problem: PlanningProblem) -> Mapping[str, Hardware] | None:
    """What the devices can do, as far as times can be compared: processes on CPUs share cores, so
    that placements which overlap gain nothing there.

    Raises:
        DevicesUnknown: of one of several pools among which the planner would have to choose.
    """
    if problem.device is Device.CPU:
        return None
    try:
        return hardware_of_pools(problem.pools, problem.profile)
    except DevicesUnknown as error:
        if len(problem.pools) > 1 and problem.fixed.placement.type is PlacementType.AUTO:
            raise DevicesUnknown(
                f"no role can be given to one of several pools by the time that it takes: {error}; "
                "or write placement.type: Manual with the roles of each pool"
            ) from error
        return None


def _fastest_plan(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], most_fitted: int
) -> Plan:
    check_served(problem)
    others = baselines(problem, hardware)
    fitted = [each.fitted for each in others if each.fitted is not None]
    found = find_plan(problem, hardware, _family(problem), fitted, most_fitted)
    if found.fitted is None:
        first_that_fits(problem)  # which says why not
        raise DoesNotFit("nothing that was tried fits")
    unfused = [fitted_plan(each) for each in (found.fitted, *fitted, *found.apart)]
    fused = fastest_fusion(problem, hardware, unfused, found.step_seconds)
    search = _search(found, others, fused)
    plan, reasons = unfused[0], [_reason(search)]
    if fused is not None:
        plan = fused.plan
        reasons.append(fusion_reason(fused, found.step_seconds))
    plan = with_estimate(problem, plan)
    reasons += plan.reasons
    return plan.model_copy(update={"search": search, "reasons": tuple(reasons)})


def _family(problem: PlanningProblem) -> tuple[Placement, ...]:
    """The placements that are compared: all of them where it is left to the planner, and that of
    ReaL's rule, whose sets overlap. So every plan from which the search starts is of the family,
    and what is proved does not depend on the memory by which rules choose."""
    if problem.fixed.placement.type is not PlacementType.AUTO:
        return (places_of(problem),)
    found = tuple(placements(problem))
    return found if len(problem.pools) > 1 else (*found, uncut(real_heuristic(problem)))


def _search(found: Found, others: tuple[Baseline, ...], fused: FusedStep | None) -> PlanSearch:
    return PlanSearch(
        num_placements=found.num_placements,
        bound_seconds=found.bound_seconds,
        is_optimal=found.is_optimal,
        unfused_seconds=None if fused is None else found.step_seconds,
        alternatives=tuple(each.alternative for each in others),
    )


def _reason(search: PlanSearch) -> str:
    """How good the plan is."""
    number = search.num_placements
    family = f"the fastest of {number} placements" if number > 1 else "the fastest way to compute"
    if search.unfused_seconds is not None:
        family = f"faster than {family} without a stage fusion"
    if search.is_optimal and search.unfused_seconds is not None:
        return (
            f"{family}, by the times that are expected: proved, none of those takes less than "
            f"{search.unfused_seconds:.4g} s"
        )
    if search.is_optimal:
        return f"{family}, by the times that are expected: proved, none of them takes less"
    return (
        f"{family} as far as it was searched, by the times that are expected: none of them takes "
        f"less than {search.bound_seconds:.4g} s"
    )
