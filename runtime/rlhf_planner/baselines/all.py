"""Plans by every rule that respects what the manifest fixes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from rlhf_api.errors import ManifestError
from rlhf_api.spec.placement import PlacementType
from rlhf_flow.errors import PlanError
from rlhf_planner.baselines.hybridflow import hybridflow_mapping
from rlhf_planner.baselines.realhf import real_heuristic
from rlhf_planner.baselines.rule import (
    Baseline,
    evaluated_baseline,
    feasible_placement,
    megatron_heuristic,
    simple_placement,
)
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.feasibility import FeasibleJob
from rlhf_planner.problem.problem import PlanningProblem

# Placements that follow from the roles.
PLACED_BY_ROLES = (PlacementType.COLOCATED, PlacementType.SPLIT, PlacementType.STANDALONE)
# Names of the other rules, for people.
MEGATRON, REAL, HYBRIDFLOW = "Megatron heuristic", "ReaL heuristic", "HybridFlow"
# Name of the only rule if the placement is fixed.
FIRST = "the first that fits"


def baselines(problem: PlanningProblem, hardware: Mapping[str, Hardware]) -> tuple[Baseline, ...]:
    """A plan by each rule that applies.

    Args:
        hardware: of the devices of each pool.

    Raises:
        PlanError, ManifestError: a fixed placement is impossible.
    """
    placement = problem.fixed.placement
    if placement.type is not PlacementType.AUTO:
        return (evaluated_baseline(problem, hardware, FIRST, simple_placement(problem, placement)),)
    plans = []
    for name, rule in _rules(problem, hardware).items():
        # A rule may choose what no runtime executes: then it has no plan here.
        with suppress(PlanError, ManifestError):
            plans.append(evaluated_baseline(problem, hardware, name, rule()))
    return tuple(plans)


def _rules(
    problem: PlanningProblem, hardware: Mapping[str, Hardware]
) -> dict[str, Callable[[], FeasibleJob | None]]:
    placement = problem.fixed.placement
    rules: dict[str, Callable[[], FeasibleJob | None]] = {
        kind.value: partial(simple_placement, problem, placement.model_copy(update={"type": kind}))
        for kind in PLACED_BY_ROLES
    }
    # These rules assume equal devices.
    if len(problem.pools) == 1:
        (pool,) = problem.pools
        rules[MEGATRON] = partial(megatron_heuristic, problem)
        rules[REAL] = lambda: feasible_placement(problem, real_heuristic(problem))
        rules[HYBRIDFLOW] = partial(hybridflow_mapping, problem, hardware[pool.name])
    return rules
