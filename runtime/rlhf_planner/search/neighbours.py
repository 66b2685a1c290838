"""Neighbours of a plan: plans that differ from it in one choice of a call's role. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from rlhf_api.calls import CallKind
from rlhf_api.errors import ManifestError
from rlhf_api.plan import GraphName, Plan
from rlhf_flow.errors import PlanError
from rlhf_planner.candidates.completions import completions, engine_completions
from rlhf_planner.cost.fusion import fusion_of
from rlhf_planner.cost.hardware import Hardware
from rlhf_planner.evaluate import Estimate, evaluate
from rlhf_planner.feasibility import apply_placement, check_feasible
from rlhf_planner.placement.strategy import EngineStrategy, JobStrategy, RoleStrategy, strategy_of
from rlhf_planner.plan_builder import build_plan
from rlhf_planner.problem.problem import PlanningProblem
from rlhf_planner.stage_fusion.choice import best_fusion

# Calls on a role's engines.
GENERATION = (CallKind.GENERATE, CallKind.RESHARD, CallKind.RELEASE, CallKind.FINISH)


@dataclass(frozen=True)
class Neighbour:
    """A plan that differs in one choice."""

    name: str
    """The difference, for people."""
    call_seconds: float | None
    """Seconds of one run of the call. None: the plan has no such call, or is infeasible."""
    step_seconds: float | None
    """Step time. None: the plan is infeasible."""


def neighbours(
    problem: PlanningProblem, plan: Plan, hardware: Mapping[str, Hardware], call: str
) -> tuple[Neighbour, ...]:
    """Plans that differ in one choice of a call's role, shortest step first; infeasible ones last.

    If stages of the plan overlap, each neighbour gets the overlap that is best for it.

    Args:
        plan: a plan of the problem.
        hardware: of the devices of each pool.
        call: the site of a call of the step that uses a model.
    """
    planned = plan.call(GraphName.STEP, call)
    assert planned is not None and planned.role is not None
    generates = planned.kind in GENERATION
    # Without a fusion of their own, neighbours would seem slower than a plan that has one.
    is_fused = fusion_of(plan) is not None
    result = [
        _neighbour(problem, hardware, call, name, strategy, is_fused)
        for name, strategy in _variants(problem, strategy_of(plan), planned.role, generates)
    ]
    return tuple(
        sorted(
            result,
            key=lambda neighbour: (neighbour.step_seconds is None, neighbour.step_seconds or 0.0),
        )
    )


def _neighbour(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    call: str,
    name: str,
    strategy: JobStrategy,
    is_fused: bool,
) -> Neighbour:
    try:
        plan = build_plan(check_feasible(apply_placement(problem, strategy), strategy.roles))
    except (PlanError, ManifestError):
        return Neighbour(name, None, None)
    fused = best_fusion(problem, plan, hardware) if is_fused else None
    estimate = evaluate(problem, plan if fused is None else fused.plan, hardware)
    return Neighbour(name, _seconds(estimate, call), estimate.step_seconds)


def _seconds(estimate: Estimate, call: str) -> float | None:
    seconds = estimate.calls.get(call)
    return None if seconds is None else seconds.total


def _variants(
    problem: PlanningProblem, strategy: JobStrategy, role: str, generates: bool
) -> Iterator[tuple[str, JobStrategy]]:
    """Strategies that complete that of a role otherwise if one choice is open, with a name."""
    if generates:
        # The other choices belong to calls that train the role or run it forward.
        engines = strategy.engines[role]
        # Another size has a stride, a cache and a release of its own.
        open_engines = EngineStrategy(engines.devices, group=engines.group)
        for sized in engine_completions(problem, role, open_engines):
            if sized.tensor != engines.tensor:
                changed = {**strategy.engines, role: sized}
                yield f"engines of {sized.tensor}", replace(strategy, engines=changed)
        return
    own = strategy.roles[role]
    for is_open, name in (
        (replace(own, tensor=None, pipeline=None), _cut_name),
        (replace(own, micro_batch_tokens=None), _micro_batch_name),
        (replace(own, recompute=None), _recompute_name),
    ):
        for complete in completions(problem, role, is_open):
            if complete != own:
                yield name(complete), replace(strategy, roles={**strategy.roles, role: complete})


def _cut_name(strategy: RoleStrategy) -> str:
    return f"tensor {strategy.tensor} x pipeline {strategy.pipeline}"


def _micro_batch_name(strategy: RoleStrategy) -> str:
    return f"micro-batches of {strategy.micro_batch_tokens} tokens"


def _recompute_name(strategy: RoleStrategy) -> str:
    return "activations recomputed" if strategy.recompute else "activations kept"
