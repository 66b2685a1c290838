"""A plan without a comparison of times: the first way to compute that fits, of those in the order
of the time that they take by rule (memory_choices.py)."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from rlhf_flow.errors import DoesNotFit
from rlhf_flow.planning.fitting import FittedJob, PlacedJob, fit_job, place_job
from rlhf_flow.planning.memory_choices import memory_choices, tried
from rlhf_flow.planning.problem import PlanningProblem


def first_that_fits(problem: PlanningProblem) -> FittedJob:
    """The first way to compute that fits, where placement says; for errors see `plan_problem`."""
    return first_way_that_fits(place_job(problem))


def first_way_that_fits(placed: PlacedJob) -> FittedJob:
    """The way to compute that takes least time, by rule, of those that fit.

    Raises:
        DoesNotFit: none does.
    """
    return _with_less_recomputation(_first_that_fits(placed))


def _first_that_fits(placed: PlacedJob) -> FittedJob:
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
