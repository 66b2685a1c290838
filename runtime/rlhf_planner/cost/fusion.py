"""Plans whose generation overlaps with calls that read responses. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rlhf_api.calls import FINISH, CallId, CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import CallPlan, GraphName, Plan
from rlhf_api.plan_fusion import StageFusion
from rlhf_api.plan_text import describe_devices
from rlhf_flow.trace.graph import Graph
from rlhf_planner.placement.transitions import generation_call


@dataclass(frozen=True)
class Fusion:
    """The overlap at the end of a step's generation."""

    generate: CallId
    """The generate call whose last responses few engines finish."""
    mesh: Mesh
    """The engines that finish them: some of the generation's, or all."""
    threshold_rows: int
    """Limit of unfinished responses when they start to."""
    calls: tuple[CallId, ...]
    """Calls that begin early, with the finished responses, in program order."""


def describe_fusion(fusion: Fusion) -> str:
    """Describe a fusion for people."""
    mesh = fusion.mesh
    return (
        f"when at most {fusion.threshold_rows} responses are left, {mesh.data} engine"
        f"{'' if mesh.data == 1 else 's'} on {describe_devices(mesh.ranks, mesh.pool)} finish them "
        f"so that {', '.join(fusion.calls)} can begin with the others"
    )


def fusion_of(plan: Plan) -> Fusion | None:
    """The fusion of a plan's step. None: there is none."""
    for generation in plan.generations:
        if generation.fusion is not None:
            # A step with a fusion has a single call that generates, so its kind identifies it.
            own = [call for call in plan.calls if call.role == generation.role]
            step = {own_call.kind: own_call for own_call in own if own_call.graph is GraphName.STEP}
            generate, finish = step[CallKind.GENERATE], step[CallKind.FINISH]
            assert finish.mesh is not None
            staged = generation.fusion
            return Fusion(generate.call, finish.mesh, staged.threshold_rows, staged.calls)
    return None


def fused_plan(plan: Plan, graph: Graph, fusion: Fusion) -> Plan:
    """Add a fusion to a plan: the call that finishes responses, and the calls that begin before.

    Args:
        plan: without a fusion.
        graph: of the step.
        fusion: one that the runtime can run; see `fusable_calls`.
    """
    generate = plan.call(GraphName.STEP, fusion.generate)
    assert generate is not None
    staged = StageFusion(threshold_rows=fusion.threshold_rows, calls=fusion.calls)
    return plan.model_copy(
        update={
            "calls": tuple(_with_finish(plan, graph, fusion)),
            "generations": tuple(
                generation.model_copy(update={"fusion": staged})
                if generation.role == generate.role
                else generation
                for generation in plan.generations
            ),
        }
    )


def _with_finish(plan: Plan, graph: Graph, fusion: Fusion) -> Iterator[CallPlan]:
    for planned in plan.calls:
        yield planned
        if (planned.graph, planned.call) == (GraphName.STEP, fusion.generate):
            finish = generation_call(graph.call(planned.call), FINISH, CallKind.FINISH)
            yield planned.model_copy(
                update={
                    "call": finish.id,
                    "method": finish.method,
                    "kind": finish.kind,
                    "mesh": fusion.mesh,
                    "reads": (),
                    "writes": (),
                }
            )
