"""Calls of a step that may begin early, and engines that may finish its last responses. Pure.

A call begins early if it starts before the last response has ended. The runtime runs it twice on
all of its ranks, over the responses that ended early and over the others.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import combinations, groupby

from rlhf_api.calls import CallId, CallKind
from rlhf_api.mesh import Mesh
from rlhf_api.plan import GraphName, Plan
from rlhf_flow.step.calls import ComputeOptions, ModelCall
from rlhf_flow.step.operations import Custom, Operation, Scope
from rlhf_flow.trace.graph import Graph
from rlhf_planner.placement.transitions import region_of

# Up to this number of meshes every subset is kept free; of more, each by itself, and all, as the
# number of subsets doubles with each mesh.
MAX_SETS = 4


def finish_meshes(engines: Mesh, others: Sequence[Mesh]) -> tuple[Mesh, ...]:
    """Meshes of neighbouring engines that leave calls' devices free.

    Args:
        engines: all of them.
        others: meshes of calls that might begin while they finish.
    """
    needed = {_blocks(engines, mesh) for mesh in others}
    result: dict[Mesh, None] = {}
    # Calls on no device of the engines can begin while all engines finish.
    if range(0) in needed:
        result[engines] = None
    shared = sorted(needed - {range(0)}, key=lambda blocks: (blocks.start, blocks.stop))
    for kept_free in _sets(shared):
        for blocks in _runs(_num_blocks(engines), kept_free):
            size = len(blocks)
            while size:
                # Fewer engines read their weights less often, more decode faster: halves, quarters
                # and so on are tried, too.
                result[_mesh_of(engines, blocks.start, size)] = None
                size //= 2
    return tuple(result)


def _sets(meshes: Sequence[range]) -> Iterator[tuple[range, ...]]:
    sizes = range(1, len(meshes) + 1)
    for size in sizes if len(meshes) <= MAX_SETS else (1, len(meshes)):
        yield from combinations(meshes, size)


def _runs(number: int, occupied: Collection[range]) -> Iterator[range]:
    """Runs of neighbouring free blocks."""
    free = [
        block
        for block in range(number)
        if not any(block in occupied_blocks for occupied_blocks in occupied)
    ]
    # In a run of neighbours the difference between block and position is constant.
    for _, numbered in groupby(enumerate(free), key=lambda pair: pair[1] - pair[0]):
        blocks = [block for _, block in numbered]
        yield range(blocks[0], blocks[-1] + 1)


def _block_size(engines: Mesh) -> int:
    """Ranks of the smallest block of neighbouring engines."""
    # Engines with interleaved ranks cannot be separated, so they share a block.
    return engines.tensor * engines.tensor_stride


def _num_blocks(engines: Mesh) -> int:
    return engines.num_devices // _block_size(engines)


def _blocks(engines: Mesh, mesh: Mesh) -> range:
    """The blocks of engines that have ranks of a mesh."""
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
        plan: its plan, with or without a fusion.
        mesh: the engines that finish the last responses.
    """
    return tuple(
        call.id
        for call in graph.calls_of_kind(CallKind.INFER, CallKind.SCORE)
        if obstacle(graph, plan, mesh, call) is None
    )


def fused_generate(graph: Graph) -> ModelCall | None:
    """The call of a step whose last responses may be finished separately. None: there is none."""
    generates = graph.calls_of_kind(CallKind.GENERATE)
    is_fusable = len(generates) == 1 and not graph.repeats and not region_of(generates[0])
    return generates[0] if is_fusable else None


def obstacle(graph: Graph, plan: Plan, mesh: Mesh | None, call: ModelCall) -> str | None:
    """The reason why a call of the step cannot begin early; None: it can.

    Args:
        graph: of the step.
        plan: its plan.
        mesh: the engines that finish the last responses. None: any.
        call: of the step.
    """
    generate = fused_generate(graph)
    if generate is None:
        return "the step repeats something, or has not one call that generates for all of it"
    return _obstacle_of_rows(graph, generate, call) or _obstacle_of_ranks(plan, mesh, call)


def _obstacle_of_rows(graph: Graph, generate: ModelCall, call: ModelCall) -> str | None:
    """The obstacle in what the call computes."""
    # It runs over some responses before the others exist. So it may read nothing but responses and
    # their columns, and no row's result may depend on other rows.
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
    """True if an operation may compare responses to one prompt."""
    # Built-in operations over the batch only sum or count; a user's own may do anything.
    if isinstance(operation, Custom):
        return operation.scope is not Scope.ROW
    return operation.scope is Scope.GROUP


def _obstacle_of_ranks(plan: Plan, mesh: Mesh | None, call: ModelCall) -> str | None:
    planned = plan.call(GraphName.STEP, call.id)
    assert planned is not None
    if any(plan.transitions(GraphName.STEP, call.id)):
        return "something is loaded or offloaded right before or after it"
    # The finishing engines still generate there when the call's first part begins.
    if mesh is not None and planned.mesh is not None and planned.mesh.overlaps(mesh):
        return "engines that finish responses are on its devices"
    return None
