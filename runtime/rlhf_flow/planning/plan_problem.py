"""From what is planned to its plan: the first way to compute that fits, or why none does."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rlhf_api.plan import Plan
from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.estimate.evaluate import with_estimate
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import FittedJob, PlacedJob, fit_job, place_job
from rlhf_flow.planning.memory_choices import memory_choices, tried
from rlhf_flow.planning.problem import PlanningProblem


def plan_problem(problem: PlanningProblem) -> Plan:
    """The plan of a job.

    Raises:
        InvalidPlacement: groups that do not fit the roles, their calls or the pools.
        NotOffered: a role that is trained and runs forward on different devices, several roles
            that generate on the same GPUs or on some of a pool's devices, weights that would be
            copied between devices or engines, or a model that no engine serves.
        ManifestError: a training engine or a cut that a model does not have.
        DoesNotDivide: a parallelism that does not divide devices, heads or layers' width.
        KvCacheTooSmall: a given cache below one longest sequence.
        DoesNotFit: more memory than a device has; the message shows the sum.
    """
    placed = place_job(problem)
    found = _with_less_recomputation(_first_that_fits(placed))
    return with_estimate(problem, fitted_plan(found))


def _first_that_fits(placed: PlacedJob) -> FittedJob:
    """The way to compute that takes least time of those that fit.

    Raises:
        DoesNotFit: none does.
    """
    *better, last = memory_choices(placed.problem, placed.groups)
    for choice in better:
        with suppress(DoesNotFit):
            return fit_job(placed, choice)
    try:
        return fit_job(placed, last)
    except DoesNotFit as error:
        raise DoesNotFit("\n".join([str(error), *tried(last)])) from error


def _with_less_recomputation(found: FittedJob) -> FittedJob:
    """The same where roles keep their activations that need not recompute them."""
    for role in sorted(found.choice.chosen_to_recompute):
        choice = replace(found.choice, recomputed=found.choice.recomputed - {role})
        with suppress(DoesNotFit):
            other = fit_job(found.placed, choice)
            found = other if other.engines == found.engines else found
    return found
