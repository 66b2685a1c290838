"""The fastest plan whose stages overlap, among some that were found without. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from rlhf_api.plan import Plan
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.planning.placement import describe_devices
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.seconds.hardware import Hardware
from rlhf_flow.planning.stage_fusion.best_fusion import FusedStep, best_fusion


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


def fusion_reason(fused: FusedStep, step_seconds: float) -> str:
    """What a fusion is, and what it saves of steps of so many seconds."""
    fusion, mesh = fused.fusion, fused.fusion.mesh
    engines = f"{mesh.data} engine{'' if mesh.data == 1 else 's'}"
    return (
        f"when at most {fusion.threshold_rows} responses are left, {engines} on "
        f"{describe_devices(mesh.ranks, mesh.pool)} finish them while {', '.join(fusion.calls)} "
        f"begin with the others: steps are {step_seconds - fused.step_seconds:.2g} s shorter than "
        "those of the fastest plan without"
    )
