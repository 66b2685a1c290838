"""From what is planned to its plan: on GPUs whose speed is known the best that is found by the
objective, else the first way to compute that fits."""

from __future__ import annotations

from collections.abc import Mapping

from rlhf_api.plan import Plan
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import DevicesUnknown, DoesNotFit
from rlhf_flow.planning.compared_times import require_comparable, require_times
from rlhf_flow.planning.estimate.evaluate import hardware_of_pools, with_estimate
from rlhf_flow.planning.first_that_fits import first_that_fits
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.plan_of_a_part import plan_of_a_part
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.find_plan import MAX_FITTED
from rlhf_flow.planning.search.searched import search_problem, searched_plan
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.served import check_served
from rlhf_flow.planning.stage_fusion.told_fusion import fused_as_told


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
            copied between devices or engines, a model that no engine serves, or a stage fusion
            where nothing can overlap.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
        TimesUnknown: an objective that compares times, on devices whose times are not known.
        StepTooLong: no number of devices on which a step takes as little as is asked for.
    """
    objective = problem.fixed.placement.objective
    if objective.may_use_fewer_devices:
        require_times(objective, problem.pools)
    try:
        require_comparable(problem.pools)
    except DevicesUnknown as error:
        _refuse_to_share_out(problem, error)
        return with_estimate(problem, fused_as_told(problem, fitted_plan(first_that_fits(problem))))
    check_served(problem)
    hardware = hardware_of_pools(problem.pools, problem.profile)
    plan = (
        plan_of_a_part(problem, hardware, most_fitted) if objective.may_use_fewer_devices else None
    )
    return plan or _fastest_plan(problem, hardware, most_fitted)


def _refuse_to_share_out(problem: PlanningProblem, error: DevicesUnknown) -> None:
    """Raise where the planner would have to choose among several pools without knowing times."""
    if len(problem.pools) > 1 and problem.fixed.placement.type is PlacementType.AUTO:
        raise DevicesUnknown(
            f"no role can be given to one of several pools by the time that it takes: {error}; "
            "or write placement.type: Manual with the roles of each pool"
        ) from error


def _fastest_plan(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], most_fitted: int
) -> Plan:
    searched = search_problem(problem, hardware, most_fitted)
    if searched.found.fitted is None:
        first_that_fits(problem)  # which says why not
        raise DoesNotFit("nothing that was tried fits")
    return searched_plan(searched)
