"""A step's graph as a manifest holds it, and back.

Written is what the step's calls are and where their fields come from. What follows from it is made
anew: kinds of calls, what data it reads, the order that weights impose.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphInputs
from rlhf_api.spec.algorithm_graph import (
    AlgorithmGraph,
    GraphCall,
    GraphRegion,
    GraphRole,
    GraphRows,
    GraphSampling,
    GraphSource,
    GraphTraining,
    RegionKind,
    RoleKind,
)
from rlhf_flow.document.graph_checks import check_call, check_roles_and_regions, kind_of_call
from rlhf_flow.document.term_document import read_loss, read_operation, write_term
from rlhf_flow.errors import FlowError, InvalidGraph
from rlhf_flow.step.calls import (
    ComputeOptions,
    CopyOptions,
    GenerateOptions,
    ModelCall,
    Options,
    SaveOptions,
    TrainOptions,
)
from rlhf_flow.step.roles import LanguageModel, RewardSource, Role, ScalarModel
from rlhf_flow.trace.graph import (
    PRETRAINING,
    PROMPTS,
    DataEdge,
    Graph,
    Region,
    RowCount,
    fields_read,
    version_edges,
)

ROLE_KINDS: Mapping[RoleKind, type[Role]] = {
    RoleKind.LANGUAGE_MODEL: LanguageModel,
    RoleKind.SCALAR_MODEL: ScalarModel,
    RoleKind.REWARD_SOURCE: RewardSource,
}
_NAMES = {kind: name for name, kind in ROLE_KINDS.items()}
_REGIONS = {"every": RegionKind.EVERY, "repeat": RegionKind.REPEAT}


def write_graph(graph: Graph, *, code_digest: str, settings_digest: str) -> AlgorithmGraph:
    """A traced graph for a manifest.

    Args:
        graph: of a step.
        code_digest: of the code that it was traced from.
        settings_digest: of what of the manifest it was traced with.

    Raises:
        InvalidGraph: a role or a setting that a manifest cannot hold.
        ValidationError: more of something than it may have.
    """
    return AlgorithmGraph(
        version=1,
        code_digest=code_digest,
        settings_digest=settings_digest,
        roles=tuple(
            GraphRole(name=name, kind=_kind_name(name, kind)) for name, kind in graph.roles.items()
        ),
        prompt_batches=graph.inputs.prompt_batches,
        calls=tuple(_written_call(graph, call) for call in graph.calls),
        regions=tuple(
            GraphRegion(id=each.id, kind=_REGIONS[each.kind], expected_count=each.expected_count)
            for each in graph.regions
        ),
    )


def read_graph(given: AlgorithmGraph) -> Graph:
    """The graph that a manifest holds, checked: whatever it says, calls come after what they read.

    Raises:
        InvalidGraph: parts that do not fit each other, which no trace gives.
    """
    try:
        return _read_graph(given)
    except FlowError as error:
        raise InvalidGraph(str(error)).at("spec", "algorithm", "graph") from error
    except InvalidGraph as error:
        raise error.at("spec", "algorithm", "graph") from error.__cause__


def _read_graph(given: AlgorithmGraph) -> Graph:
    check_roles_and_regions(given)
    roles = {each.name: ROLE_KINDS[each.kind] for each in given.roles}
    calls: list[ModelCall] = []
    rows: dict[str, RowCount] = {}
    for each in given.calls:
        call = _read_call(each, kind_of_call(each, roles))
        check_call(each, call, roles, {before.id: before for before in calls}, given.regions)
        calls.append(call)
        rows[call.id] = RowCount(each.rows.expected, each.rows.most)
    edges = tuple(
        DataEdge(source.source, each.id, source.fields)
        for each in given.calls
        for source in each.sources
    )
    return Graph(
        roles=roles,
        inputs=GraphInputs(
            prompts=fields_read(PROMPTS, edges),
            pretraining=fields_read(PRETRAINING, edges),
            prompt_batches=given.prompt_batches,
        ),
        calls=tuple(calls),
        data_edges=edges,
        version_edges=version_edges(calls, roles),
        regions=tuple(
            Region(
                each.id,
                "every" if each.kind is RegionKind.EVERY else "repeat",
                each.expected_count,
            )
            for each in given.regions
        ),
        rows=rows,
        responses={each.id: each.responses for each in given.calls},
    )


def _kind_name(role: str, kind: type[Role]) -> RoleKind:
    """The name of a role's class, or of the one that it derives from."""
    for each in kind.__mro__:
        if each in _NAMES:
            return _NAMES[each]
    raise InvalidGraph(
        f"a role of another kind than a manifest's graph has: got {role}, a {kind.__name__}, "
        f"allowed {', '.join(RoleKind)}; without it the driver plans first"
    )


def _written_call(graph: Graph, call: ModelCall) -> GraphCall:
    options, rows = call.options, graph.rows[call.id]
    edges = [edge for edge in graph.data_edges if edge.target == call.id]
    return GraphCall(
        id=call.id,
        role=call.role,
        method=call.method,
        reads=call.reads,
        writes=call.writes,
        sources=tuple(GraphSource(source=each.source, fields=each.fields) for each in edges),
        rows=GraphRows(expected=rows.expected, most=rows.most),
        responses=graph.responses[call.id],
        generate=_written_sampling(options),
        train=_written_training(call),
        compute=_written_operations(options),
        weights_of=call.copied_role,
        folder=options.name if isinstance(options, SaveOptions) else None,
    )


def _written_sampling(options: Options) -> GraphSampling | None:
    if not isinstance(options, GenerateOptions):
        return None
    return GraphSampling(
        samples=options.samples, temperature=options.temperature, greedy=options.greedy
    )


def _written_training(call: ModelCall) -> GraphTraining | None:
    options = call.options
    if not isinstance(options, TrainOptions):
        return None
    return GraphTraining(
        loss=write_term(options.loss),
        from_step=options.from_step,
        auxiliary=tuple(map(write_term, options.auxiliary)),
        auxiliary_reads=call.auxiliary_reads,
    )


def _written_operations(options: Options) -> Sequence[object]:
    return tuple(map(write_term, options.operations)) if isinstance(options, ComputeOptions) else ()


def _read_call(given: GraphCall, kind: CallKind) -> ModelCall:
    return ModelCall(
        id=given.id,
        role=given.role,
        method=given.method,
        kind=kind,
        reads=given.reads,
        writes=given.writes,
        carries=given.reads if kind is CallKind.GENERATE else (),
        options=_read_options(given),
        auxiliary_reads=() if given.train is None else given.train.auxiliary_reads,
    )


def _read_options(given: GraphCall) -> Options:
    """What a call is made with; that it is what its kind has is checked where it is read."""
    if given.generate is not None:
        sampling = given.generate
        return GenerateOptions(sampling.samples, sampling.temperature, sampling.greedy)
    if given.train is not None:
        auxiliary = tuple(map(read_loss, given.train.auxiliary))
        return TrainOptions(read_loss(given.train.loss), given.train.from_step, auxiliary)
    if given.compute:
        return ComputeOptions(tuple(map(read_operation, given.compute)))
    if given.weights_of is not None:
        return CopyOptions(given.weights_of)
    return None if given.folder is None else SaveOptions(given.folder)
