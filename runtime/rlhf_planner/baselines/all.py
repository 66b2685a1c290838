"""The plans by rules that leave decided what is decided. Pure.

Rules of ReaL and HybridFlow are for equal devices: they apply to a job on one pool whose placement
is left to the planner.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from rlhf_api.errors import ManifestError
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import PlanError
from rlhf_planner.baselines.hybridflow import hybridflow_mapping
from rlhf_planner.baselines.real import real_heuristic
from rlhf_planner.baselines.rule import (
    Baseline,
    fitted_placement,
    judged,
    megatron_heuristic,
    simple_placement,
)
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.feasibility import FittedJob
from rlhf_planner.problem.problem import PlanningProblem

PLACED_BY_ROLES = (PlacementType.COLOCATED, PlacementType.SPLIT, PlacementType.STANDALONE)
"""Placements that follow from what roles are."""
MEGATRON, REAL, HYBRIDFLOW = "Megatron heuristic", "ReaL heuristic", "HybridFlow"
"""Names of the others, for people."""
FIRST = "the first that fits"
"""The name of the only one where the placement is decided."""


def baselines(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> tuple[Baseline, ...]:
    """A plan by each rule; those that do not apply are left out.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.

    Raises:
        PlanError, ManifestError: a placement that is decided cannot be.
    """
    placement = problem.fixed.placement
    if placement.type is not PlacementType.AUTO:
        return (judged(problem, hardware, FIRST, simple_placement(problem, placement)),)
    found = []
    for name, rule in _rules(problem, hardware).items():
        with suppress(PlanError, ManifestError):
            found.append(judged(problem, hardware, name, rule()))
    return tuple(found)


def _rules(
    problem: PlanningProblem, hardware: Mapping[str, Hardware]
) -> dict[str, Callable[[], FittedJob | None]]:
    placement = problem.fixed.placement
    rules: dict[str, Callable[[], FittedJob | None]] = {
        kind.value: partial(simple_placement, problem, placement.model_copy(update={"type": kind}))
        for kind in PLACED_BY_ROLES
    }
    if len(problem.pools) == 1:
        (pool,) = problem.pools
        rules[MEGATRON] = partial(megatron_heuristic, problem)
        rules[REAL] = lambda: fitted_placement(problem, real_heuristic(problem))
        rules[HYBRIDFLOW] = partial(hybridflow_mapping, problem, hardware[pool.name])
    return rules
