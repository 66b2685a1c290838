"""Writes a step's graph for a manifest, and reads it.

A manifest stores the calls and the sources of their columns. Kinds of calls, the data that is read
and the version edges are derived at reading.
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
from rlhf_flow.document.graph_checks import call_kind, check_call, check_roles_and_regions
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
    columns_read,
    version_edges,
)

ROLE_KINDS: Mapping[RoleKind, type[Role]] = {
    RoleKind.LANGUAGE_MODEL: LanguageModel,
    RoleKind.SCALAR_MODEL: ScalarModel,
    RoleKind.REWARD_SOURCE: RewardSource,
}
# Inverse of ROLE_KINDS.
_NAMES = {kind: name for name, kind in ROLE_KINDS.items()}
_REGIONS = {"every": RegionKind.EVERY, "repeat": RegionKind.REPEAT}


def write_graph(graph: Graph, *, code_digest: str, settings_digest: str) -> AlgorithmGraph:
    """Write a traced graph for a manifest.

    Args:
        graph: of a step.
        code_digest: of the code that it was traced from.
        settings_digest: of the manifest's settings with which it was traced.

    Raises:
        InvalidGraph: a role or a setting that a manifest cannot hold.
        ValidationError: more calls or entries than a manifest may have.
    """
    return AlgorithmGraph(
        version=1,
        code_digest=code_digest,
        settings_digest=settings_digest,
        roles=tuple(
            GraphRole(name=name, kind=_kind_name(name, kind)) for name, kind in graph.roles.items()
        ),
        prompt_batches=graph.inputs.prompt_batches,
        calls=tuple(_write_call(graph, call) for call in graph.calls),
        regions=tuple(
            GraphRegion(
                id=region.id, kind=_REGIONS[region.kind], expected_count=region.expected_count
            )
            for region in graph.regions
        ),
    )


def read_graph(stored: AlgorithmGraph) -> Graph:
    """Read and check the graph of a manifest. Calls come after the calls that they read.

    Raises:
        InvalidGraph: inconsistent parts, which no trace gives.
    """
    try:
        return _read_graph(stored)
    except FlowError as error:
        raise InvalidGraph(str(error)).at("spec", "algorithm", "graph") from error
    except InvalidGraph as error:
        # It is the same error with its path, so the cause stays the same.
        raise error.at("spec", "algorithm", "graph") from error.__cause__


def _read_graph(stored: AlgorithmGraph) -> Graph:
    check_roles_and_regions(stored)
    roles = {role.name: ROLE_KINDS[role.kind] for role in stored.roles}
    calls: list[ModelCall] = []
    rows: dict[str, RowCount] = {}
    for entry in stored.calls:
        call = _read_call(entry, call_kind(entry, roles))
        # One by one: each check may rely on the earlier calls.
        check_call(entry, call, roles, {before.id: before for before in calls}, stored.regions)
        calls.append(call)
        rows[call.id] = RowCount(entry.rows.expected, entry.rows.most)
    edges = tuple(
        DataEdge(source.source, entry.id, source.fields)
        for entry in stored.calls
        for source in entry.sources
    )
    # Only what a trace decides is stored; a stored value that follows from others could contradict
    # them.
    return Graph(
        roles=roles,
        inputs=GraphInputs(
            prompts=columns_read(PROMPTS, edges),
            pretraining=columns_read(PRETRAINING, edges),
            prompt_batches=stored.prompt_batches,
        ),
        calls=tuple(calls),
        data_edges=edges,
        version_edges=version_edges(calls, roles),
        regions=tuple(
            Region(
                region.id,
                "every" if region.kind is RegionKind.EVERY else "repeat",
                region.expected_count,
            )
            for region in stored.regions
        ),
        rows=rows,
        responses={entry.id: entry.responses for entry in stored.calls},
    )


def _kind_name(role: str, kind: type[Role]) -> RoleKind:
    """The name of a role's class, or of its nearest named base class."""
    # A user may derive a role's class, of which a manifest knows nothing.
    for base in kind.__mro__:
        if base in _NAMES:
            return _NAMES[base]
    raise InvalidGraph(
        f"a role of another kind than a manifest's graph has: got {role}, a {kind.__name__}, "
        f"allowed {', '.join(RoleKind)}; without it the driver plans first"
    )


def _write_call(graph: Graph, call: ModelCall) -> GraphCall:
    options, rows = call.options, graph.rows[call.id]
    edges = [edge for edge in graph.data_edges if edge.target == call.id]
    return GraphCall(
        id=call.id,
        role=call.role,
        method=call.method,
        reads=call.reads,
        writes=call.writes,
        sources=tuple(GraphSource(source=edge.source, fields=edge.columns) for edge in edges),
        rows=GraphRows(expected=rows.expected, most=rows.maximum),
        responses=graph.responses[call.id],
        generate=_write_sampling(options),
        train=_write_training(call),
        compute=_write_operations(options),
        weights_of=call.copied_role,
        folder=options.name if isinstance(options, SaveOptions) else None,
    )


def _write_sampling(options: Options) -> GraphSampling | None:
    if not isinstance(options, GenerateOptions):
        return None
    return GraphSampling(
        samples=options.samples, temperature=options.temperature, greedy=options.greedy
    )


def _write_training(call: ModelCall) -> GraphTraining | None:
    options = call.options
    if not isinstance(options, TrainOptions):
        return None
    return GraphTraining(
        loss=write_term(options.loss),
        from_step=options.from_step,
        auxiliary=tuple(map(write_term, options.auxiliary)),
        auxiliary_reads=call.auxiliary_reads,
    )


def _write_operations(options: Options) -> Sequence[object]:
    return tuple(map(write_term, options.operations)) if isinstance(options, ComputeOptions) else ()


def _read_call(entry: GraphCall, kind: CallKind) -> ModelCall:
    return ModelCall(
        id=entry.id,
        role=entry.role,
        method=entry.method,
        kind=kind,
        reads=entry.reads,
        writes=entry.writes,
        # As Flow.call derives it.
        carries=entry.reads if kind is CallKind.GENERATE else (),
        options=_read_options(entry),
        auxiliary_reads=() if entry.train is None else entry.train.auxiliary_reads,
    )


def _read_options(entry: GraphCall) -> Options:
    # check_call refuses options of another kind of call.
    if entry.generate is not None:
        sampling = entry.generate
        return GenerateOptions(sampling.samples, sampling.temperature, sampling.greedy)
    if entry.train is not None:
        auxiliary = tuple(map(read_loss, entry.train.auxiliary))
        return TrainOptions(read_loss(entry.train.loss), entry.train.from_step, auxiliary)
    if entry.compute:
        return ComputeOptions(tuple(map(read_operation, entry.compute)))
    if entry.weights_of is not None:
        return CopyOptions(entry.weights_of)
    return None if entry.folder is None else SaveOptions(entry.folder)
