"""A fusion that the manifest asks for, whatever it is worth (`rollout.stageFusion: Always`)."""

from __future__ import annotations

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.rollout import StageFusionType
from rlhf_flow.errors import NotOffered
from rlhf_flow.planning.estimate.call_batches import call_batch
from rlhf_flow.planning.problem import PlanningProblem
from rlhf_flow.planning.stage_fusion.best_fusion import fusion_meshes, rows_under_way
from rlhf_flow.planning.stage_fusion.fusable_calls import fusable_calls, fused_generate, obstacle
from rlhf_flow.planning.stage_fusion.fused_plan import (
    Fusion,
    describe_fusion,
    fused_plan,
    fusion_of,
)


def fused_as_told(problem: PlanningProblem, plan: Plan) -> Plan:
    """A plan with a fusion, if the manifest asks for one and it has none yet: of most calls, with
    most engines to finish responses; from half of the responses on that are under way at once,
    unless the manifest says the number.

    Args:
        problem: what is planned.
        plan: of it.

    Raises:
        NotOffered: no call of the step can begin early in this plan; the message says why.
    """
    if problem.fixed.stage_fusion is not StageFusionType.ALWAYS or fusion_of(plan) is not None:
        return plan
    graph = problem.graphs[GraphName.STEP]
    generate = fused_generate(graph)
    if generate is None:
        raise NotOffered(_nothing_overlaps(problem, plan))
    engines = plan.call(GraphName.STEP, generate.id)
    assert engines is not None and engines.mesh is not None
    meshes = (*fusion_meshes(problem, plan), engines.mesh)  # verifiers are on no device
    choices = [(fusable_calls(graph, plan, mesh), mesh) for mesh in meshes]
    calls, mesh = max(choices, key=lambda each: len(each[0]))
    if not calls:
        raise NotOffered(_nothing_overlaps(problem, plan))
    rows = problem.fixed.stage_fusion_threshold or max(1, rows_under_way(problem, plan) // 2)
    made = call_batch(problem, generate).rows
    if rows >= made > 1:
        raise NotOffered(
            f"all responses of a step would be left from the beginning: got "
            f"rollout.stageFusionThreshold {rows}, allowed 1 to {made - 1} of the {made} that a "
            "step has; lower it"
        )
    fusion = Fusion(generate.id, mesh, rows, calls)
    fused = fused_plan(plan, graph, fusion)
    reason = f"{describe_fusion(fusion)}: rollout.stageFusion says so"
    return fused.model_copy(update={"reasons": (*fused.reasons, reason)})


def _nothing_overlaps(problem: PlanningProblem, plan: Plan) -> str:
    graph = problem.graphs[GraphName.STEP]
    why = "; ".join(
        f"{call.id}: {obstacle(graph, plan, None, call) or 'it is on devices of all engines'}"
        for call in graph.calls_of_kind(CallKind.INFER, CallKind.SCORE)
    )
    return (
        "no call can begin before the last response has ended: got rollout.stageFusion Always, and "
        f"{why or 'no call that reads responses'}; place a role that reads responses apart from "
        "some engines (placement.groups), or write stageFusion: Auto"
    )
