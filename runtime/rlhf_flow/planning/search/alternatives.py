"""What simpler rules choose, to compare with: all roles on all devices, or placed apart, each with
the smallest cut that fits, tensor ranks before stages. Pure.

Source: the usual advice for Megatron: tensor parallelism within a node first, then pipeline stages,
the rest replicas (Narayanan et al., arXiv 2104.04473, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from rlhf_api.errors import ManifestError
from rlhf_api.plan_estimate import Alternative
from rlhf_api.spec.placement import PlacementSpec, PlacementType
from rlhf_flow.errors import DoesNotFit, PlanError
from rlhf_flow.planning.estimate.evaluate import evaluate
from rlhf_flow.planning.first_that_fits import first_that_fits
from rlhf_flow.planning.fitted_plan import fitted_plan
from rlhf_flow.planning.fitting import FittedJob
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.size_changes import possible_cuts

APART = (PlacementType.COLOCATED, PlacementType.SPLIT, PlacementType.STANDALONE)
"""Placements that follow from what roles are."""


@dataclass(frozen=True)
class Simple:
    """A plan by a simple rule."""

    alternative: Alternative
    """For people."""
    fitted: FittedJob | None
    """None: it does not fit."""


def simple_plans(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> tuple[Simple, ...]:
    """The plans by simple rules that leave decided what is decided; those that do not apply are
    left out.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.

    Raises:
        PlanError, ManifestError: a placement that is decided cannot be.
    """
    placement = problem.fixed.placement
    is_free = placement.type is PlacementType.AUTO
    if not is_free:
        return (_simple(problem, placement, hardware, "the first that fits"),)
    found = []
    for spec in (placement.model_copy(update={"type": kind}) for kind in APART):
        with suppress(PlanError, ManifestError):
            found.append(_simple(problem, spec, hardware, spec.type.value))
    return tuple(found)


def _simple(
    problem: PlanningProblem,
    placement: PlacementSpec,
    hardware: Mapping[str, Hardware],
    name: str,
) -> Simple:
    placed = replace(problem, fixed=replace(problem.fixed, placement=placement))
    fitted, seconds = _smallest_cut(placed), None
    if fitted is not None:
        seconds = evaluate(problem, fitted_plan(fitted), hardware).step_seconds
        chosen = replace(fitted.placed, problem=problem, is_chosen=True)
        fitted = replace(fitted, placed=chosen)
    return Simple(Alternative(name=name, step_seconds=seconds), fitted)


def _smallest_cut(problem: PlanningProblem) -> FittedJob | None:
    """The first that fits, models that may be cut in ever more parts. None: none does.

    Raises:
        PlanError, ManifestError: another reason than too little memory, for all cuts.
    """
    refusals: list[PlanError | ManifestError] = []
    for made in _cut_problems(problem):
        try:
            return first_that_fits(made)
        except DoesNotFit:
            refusals.clear()
        except (PlanError, ManifestError) as error:
            refusals.append(error)
    if refusals:
        raise refusals[0]
    return None


def _cut_problems(problem: PlanningProblem) -> Iterator[PlanningProblem]:
    free = {
        role: facts
        for role, facts in problem.models.items()
        if facts.uses_megatron and (facts.fixed.tensor is None or facts.fixed.pipeline is None)
    }
    if not free:
        yield problem
        return
    for tensor, pipeline in possible_cuts(problem.pools, [each.shape for each in free.values()]):
        cut = {
            role: replace(
                facts,
                fixed=replace(
                    facts.fixed,
                    tensor=facts.fixed.tensor or tensor,
                    pipeline=facts.fixed.pipeline or pipeline,
                ),
            )
            for role, facts in free.items()
        }
        yield replace(problem, models={**problem.models, **cut})
