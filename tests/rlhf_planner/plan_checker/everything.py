"""All that is checked of a plan."""

from __future__ import annotations

from rlhf_api.plan import Plan
from rlhf_planner.problem.problem import PlanningProblem

from .checker import (
    check_calls,
    check_engines,
    check_fusion,
    check_meshes,
    check_roles,
    check_transitions,
)
from .sums import check_memory, check_offloaded, check_seconds


def check(problem: PlanningProblem, plan: Plan) -> None:
    """That the runtime can execute a plan, that it fits, and that its times make sense."""
    check_calls(problem, plan)
    check_meshes(problem, plan)
    check_roles(problem, plan)
    check_engines(problem, plan)
    check_fusion(plan)
    check_transitions(problem, plan)
    check_memory(problem, plan)
    check_offloaded(plan)
    check_seconds(problem, plan)
