"""Which engines may finish the last responses of a step. Pure.

Which calls of a step may begin before its last response has ended. Pure.

The runtime runs such a call twice on all of its ranks, over the responses that ended early and over
the others. So it must give every row what it gives it in one run, read nothing but the responses
and what they carry, and be where no engine still generates.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, groupby

from rlhf_api.calls import CallId, CallKind
from rlhf_api.plan import GraphName, Mesh, Plan
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom, Operation, Scope
from rlhf_flow.trace.graph import Graph
from rlhf_planner.placement.transitions import region_of

MOST_SETS = 4
"""Of more meshes than these not every set is kept free, but each by itself, and all."""


def finish_meshes(engines: Mesh, others: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Meshes of some neighbouring engines that leave calls' devices free, and of all engines where
    some calls are on none of their devices. Of neighbours that may all take part also the first
    half, quarter and so on: fewer read their weights less often, and more decode faster.

    Args:
        engines: all of them.
        others: meshes of calls that might begin while they finish.
    """
    needed = {_blocks(engines, mesh) for mesh in others}
    found: dict[Mesh, None] = {}
    if range(0) in needed:
        found[engines] = None
    shared = sorted(needed - {range(0)}, key=lambda blocks: (blocks.start, blocks.stop))
    for kept_free in _sets(shared):
        for blocks in _runs(_num_blocks(engines), kept_free):
            size = len(blocks)
            while size:
                found[_mesh_of(engines, blocks.start, size)] = None
                size //= 2
    return tuple(found)


def _sets(meshes: Sequence[range]) -> Iterator[tuple[range, ...]]:
    sizes = range(1, len(meshes) + 1)
    for size in sizes if len(meshes) <= MOST_SETS else (1, len(meshes)):
        yield from combinations(meshes, size)


def _runs(number: int, taken: Collection[range]) -> Iterator[range]:
    """Neighbouring blocks that none of these takes."""
    free = [block for block in range(number) if not any(block in each for each in taken)]
    for _, numbered in groupby(enumerate(free), key=lambda each: each[1] - each[0]):
        blocks = [block for _, block in numbered]
        yield range(blocks[0], blocks[-1] + 1)


def _block_size(engines: Mesh) -> int:
    """Ranks of the smallest group of engines that are neighbours: those between whose ranks others
    lie are together."""
    return engines.tensor * engines.tensor_stride


def _num_blocks(engines: Mesh) -> int:
    return engines.num_devices // _block_size(engines)


def _blocks(engines: Mesh, mesh: Mesh) -> range:
    """The blocks of engines of which a mesh has ranks."""
    if mesh.pool != engines.pool:
        return range(0)
    size, first = _block_size(engines), engines.first_rank
    start = max(0, (mesh.ranks.start - first) // size)
    stop = min(_num_blocks(engines), -((first - mesh.ranks.stop) // size))
    return range(start, stop) if start < stop else range(0)


def _mesh_of(engines: Mesh, block: int, number: int) -> Mesh:
    first = engines.first_rank + block * _block_size(engines)
    return engines.model_copy(update={"first_rank": first, "data": number * engines.tensor_stride})


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
