"""Which calls of a step may begin before its last response has ended. Pure.

The runtime runs such a call twice on all of its ranks, over the responses that ended early and over
the others. So it must give every row what it gives it in one run, read nothing but the responses
and what they carry, and be where no engine still generates.
"""

from __future__ import annotations

from collections.abc import Iterable

from rlhf_api.calls import CallId, CallKind
from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_flow.planning.transitions import region_of
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom, Operation, Scope
from rlhf_flow.trace.graph import Graph


def fusable_calls(graph: Graph, plan: Plan, mesh: Mesh) -> tuple[CallId, ...]:
    """The calls that may begin early, in program order.

    Args:
        graph: of the step.
        plan: of it; whether it has a fusion already does not matter.
        mesh: the engines that finish the last responses.
    """
    return tuple(
        call.id
        for call in graph.calls_of_kind(CallKind.INFER, CallKind.SCORE)
        if obstacle(graph, plan, mesh, call) is None
    )


def fused_generate(graph: Graph) -> ModelCall | None:
    """The call of a step whose last responses may be finished apart. None: there is none."""
    generates = graph.calls_of_kind(CallKind.GENERATE)
    is_fusable = len(generates) == 1 and not graph.repeats and not region_of(generates[0])
    return generates[0] if is_fusable else None


def obstacle(graph: Graph, plan: Plan, mesh: Mesh | None, call: ModelCall) -> str | None:
    """Why a call of the step cannot begin early; None: it can.

    Args:
        graph: of the step.
        plan: of it.
        mesh: the engines that finish the last responses. None: wherever they may be.
        call: of the step.
    """
    generate = fused_generate(graph)
    if generate is None:
        return "the step repeats something, or has not one call that generates for all of it"
    return _obstacle_of_rows(graph, generate, call) or _obstacle_of_places(plan, mesh, call)


def _obstacle_of_rows(graph: Graph, generate: ModelCall, call: ModelCall) -> str | None:
    """What it computes."""
    if call.kind not in (CallKind.INFER, CallKind.SCORE):
        return f"it is a {call.kind.value} call, not Infer or Score"
    if region_of(call):
        return "not every step runs it"
    sources = {edge.source for edge in graph.data_edges if edge.target == call.id}
    missing = set(call.reads) - {*generate.writes, *generate.carries}
    if missing or sources != {generate.id}:
        others = ", ".join(sorted(missing) or sorted(sources - {generate.id}))
        return f"it reads more than what {generate.id} gives: {others}"
    if call.compares_responses and any(map(_compares_scores, _operations(graph))):
        return "scores of a prompt's responses are compared, so equal ones are scored together"
    return None


def _operations(graph: Graph) -> Iterable[Operation]:
    for call in graph.calls_of_kind(CallKind.COMPUTE):
        assert isinstance(call.options, ComputeOptions)
        yield from call.options.operations


def _compares_scores(operation: Operation) -> bool:
    """Whether it may compare responses to one prompt: built-in operations over the batch only sum
    or count."""
    if isinstance(operation, Custom):
        return operation.scope is not Scope.ROW
    return operation.scope is Scope.GROUP


def _obstacle_of_places(plan: Plan, mesh: Mesh | None, call: ModelCall) -> str | None:
    """Where it runs, and what the plan has beside it."""
    planned = plan.call(GraphName.STEP, call.id)
    assert planned is not None
    if any(plan.transitions(GraphName.STEP, call.id)):
        return "something is loaded or offloaded right before or after it"
    if mesh is not None and planned.mesh is not None and planned.mesh.overlaps(mesh):
        return "engines that finish responses are on its devices"
    return None
