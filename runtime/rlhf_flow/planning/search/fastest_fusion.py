"""The fastest plan whose stages overlap, among some that were found without. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from rlhf_api.plan import Plan
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import NotOffered
from rlhf_flow.planning.estimate.evaluate import evaluate
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.stage_fusion.best_fusion import FusedStep, best_fusion
from rlhf_flow.planning.stage_fusion.fused_plan import describe_fusion
from rlhf_flow.planning.stage_fusion.told_fusion import fused_as_told


def fastest_fusion(
    problem: PlanningProblem,
    hardware: Mapping[str, Hardware],
    plans: Iterable[Plan],
    step_seconds: float,
) -> FusedStep | None:
    """The plan with the shortest steps, with its fusion. None: none has clearly shorter ones.

    Args:
        problem: what is planned.
        hardware: of the devices of each pool.
        plans: of it, without fusions. Those with roles apart may be slower without and faster with
            one.
        step_seconds: of the steps to compare with.
    """
    fixed = problem.fixed
    if fixed.stage_fusion is StageFusionType.NEVER or fixed.stage_fusion_threshold is not None:
        return None
    found = (best_fusion(problem, plan, hardware, step_seconds) for plan in plans)
    fused = [each for each in found if each is not None]
    return min(fused, key=lambda each: each.step_seconds, default=None)


def fastest_as_told(
    problem: PlanningProblem, hardware: Mapping[str, Hardware], plans: Sequence[Plan]
) -> Plan:
    """The first of some plans, or, where the manifest asks for a fusion, that with the shortest
    steps of those that can have one, with it.

    Raises:
        NotOffered: a fusion is asked for, and none of them can have one; the message is about the
            first.
    """
    if problem.fixed.stage_fusion is not StageFusionType.ALWAYS:
        return plans[0]
    fused = []
    for plan in plans:
        with suppress(NotOffered):
            fused.append(fused_as_told(problem, plan))
    if not fused:
        return fused_as_told(problem, plans[0])
    return min(fused, key=lambda plan: evaluate(problem, plan, hardware).step_seconds)


def fusion_reason(fused: FusedStep, step_seconds: float) -> str:
    """What a fusion is, and what it saves of steps of so many seconds."""
    saved = step_seconds - fused.step_seconds
    return (
        f"{describe_fusion(fused.fusion)}: steps are {saved:.2g} s shorter than those of the "
        "fastest plan without"
    )
