"""A plan by a rule, with what it takes. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlhf_api.plan_estimate import Alternative
from rlhf_flow.errors import PlanError
from rlhf_flow.planning.estimate.evaluate import evaluate
from rlhf_flow.planning.first_that_fits import first_way_that_fits
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import FittedJob, PlacedJob, fit_job, place_job
from rlhf_flow.planning.memory_choices import memory_choices
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.search.placements import Placement
from rlhf_flow.planning.seconds.hardware import Hardware


@dataclass(frozen=True)
class Baseline:
    """A plan by a rule."""

    alternative: Alternative
    """For people."""
    fitted: FittedJob | None
    """None: it does not fit."""


def judged(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    name: str,
    fitted: FittedJob | None,
) -> Baseline:
    """A plan by a rule, with the time of its steps and the memory of its fullest device.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        name: of the rule, for people.
        fitted: what it chose. None: it does not fit.

    Raises:
        PlanError: the profile lacks what the plan does.
    """
    if fitted is None:
        return Baseline(Alternative(name=name, step_seconds=None), None)
    plan = fitted_plan(fitted)
    seconds = evaluate(problem, plan, hardware).step_seconds
    fullest = plan.fullest.peak_bytes
    return Baseline(Alternative(name=name, step_seconds=seconds, fullest_bytes=fullest), fitted)


def fits(placed: PlacedJob) -> bool:
    """Whether a placed job fits with the way to compute that takes least memory."""
    *_, last = memory_choices(placed.problem, placed.groups)
    try:
        fit_job(placed, last)
    except PlanError:
        return False
    return True


def fitted_placement(problem: PlanningProblem, placement: Placement) -> FittedJob | None:
    """A placement with cuts and sizes of engines, computed in the first way that fits. None: it
    does not fit.

    Args:
        problem: what is planned.
        placement: where roles are, with models cut and engines sized.

    Raises:
        PlanError, ManifestError: no runtime executes it.
    """
    placed = place_job(problem, placement)
    return first_way_that_fits(placed) if fits(placed) else None
