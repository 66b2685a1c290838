"""Placements that follow from what roles are: all roles on all devices, language models apart from
scalar ones, or every role apart, each cut in the fewest parts that fit, tensor ranks before stages,
with the smallest engines that fit. Pure.

Source: the usual advice for Megatron: tensor parallelism within a node first, then pipeline stages,
the rest replicas (Narayanan et al., arXiv 2104.04473, section 3).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rlhf_api.errors import ManifestError
from rlhf_api.spec.placement import PlacementSpec
from rlhf_flow.errors import DoesNotFit, PlanError
from rlhf_flow.planning.first_that_fits import first_that_fits
from rlhf_flow.planning.fitting import FittedJob
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.size_changes import possible_cuts


def simple_placement(problem: PlanningProblem, placement: PlacementSpec) -> FittedJob | None:
    """The first plan with a placement that fits, models cut in ever more parts. None: none does.

    Args:
        problem: what is planned.
        placement: where roles are.

    Raises:
        PlanError, ManifestError: another reason than too little memory, for all cuts.
    """
    placed = replace(problem, fixed=replace(problem.fixed, placement=placement))
    fitted = _smallest_cut(placed)
    if fitted is None:
        return None
    return replace(fitted, placed=replace(fitted.placed, problem=problem, is_chosen=True))


def _smallest_cut(problem: PlanningProblem) -> FittedJob | None:
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
