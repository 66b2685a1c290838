"""Consistency checks of a graph in a manifest.

A traced graph passes them all; a manifest may contain anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.calls import CallKind
from rlhf_api.spec.algorithm_graph import AlgorithmGraph, GraphCall, GraphRegion, RegionKind
from rlhf_flow.errors import InvalidGraph
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import PAIR_COLUMNS, PRETRAINING_COLUMNS, RESPONSE_MASK
from rlhf_flow.step.flow import RESERVED
from rlhf_flow.step.roles import Model, Roles, find_primitive
from rlhf_flow.trace.graph import PRETRAINING, PROMPTS

# Calls by their ids.
Calls = Mapping[str, ModelCall]

# Methods of the flow itself.
WITHOUT_ROLE = {"compute": CallKind.COMPUTE, "save": CallKind.SAVE}
# The field of a manifest with the options of each kind of call.
OPTIONS = {
    CallKind.GENERATE: "generate",
    CallKind.TRAIN: "train",
    CallKind.COMPUTE: "compute",
    CallKind.COPY: "weights_of",
    CallKind.SAVE: "folder",
}


def check_roles_and_regions(stored: AlgorithmGraph) -> None:
    """Refuse duplicate names, reserved names and impossible counts.

    Raises:
        InvalidGraph: there is one.
    """
    for label, names in (
        ("role", [role.name for role in stored.roles]),
        ("region", [region.id for region in stored.regions]),
        ("call", [call.id for call in stored.calls]),
    ):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        _require(not twice, f"a {label} that is there twice", ", ".join(twice), "one of each name")
    reserved = [role.name for role in stored.roles if role.name in RESERVED]
    _require(not reserved, "a role of a name that none may have", ", ".join(reserved), "another")
    for region in stored.regions:
        # One of n steps, or at least the first round.
        is_every = region.kind is RegionKind.EVERY
        is_possible = region.expected_count <= 1 if is_every else region.expected_count >= 1
        _require(
            is_possible,
            f"{region.id} runs impossibly often",
            f"expectedCount {region.expected_count:g}",
            "at most 1 for Every, at least 1 for Repeat",
        )


def call_kind(entry: GraphCall, roles: Roles) -> CallKind:
    """The kind of a call, by its role and method.

    Raises:
        InvalidGraph: an unknown role, or a method that it does not have.
    """
    if entry.role is None:
        kind = WITHOUT_ROLE.get(entry.method)
        _require(kind is not None, f"{entry.id} is of no role", entry.method, "compute or save")
        assert kind is not None
        return kind
    _require(entry.role in roles, f"{entry.id} is of an unknown role", entry.role, ", ".join(roles))
    primitive = find_primitive(roles[entry.role], entry.method)
    methods = ", ".join(allowed.method for allowed in roles[entry.role].primitives)
    label = f"{entry.id} is what {entry.role} cannot do"
    _require(primitive is not None, label, entry.method, methods)
    assert primitive is not None
    return primitive.kind


def check_call(
    entry: GraphCall,
    call: ModelCall,
    roles: Roles,
    before: Calls,
    regions: Sequence[GraphRegion],
) -> None:
    """Refuse a call that no step can make.

    Args:
        entry: of the manifest.
        call: read from it.
        roles: of the graph.
        before: earlier calls.
        regions: of the graph.

    Raises:
        InvalidGraph: it is inconsistent.
    """
    # The kind follows from role and method; options of another kind would be ignored.
    required = OPTIONS.get(call.kind)
    got = [name for name in OPTIONS.values() if getattr(entry, name)]
    expected = [] if required is None else [required]
    _require(
        got == expected,
        f"{call.id} has options of another method, or lacks its own",
        ", ".join(got) or "nothing",
        ", ".join(expected) or "nothing",
    )
    if "/" in call.id:
        is_inside = any(call.id.startswith(f"{region.id}/") for region in regions)
        allowed = ", ".join(region.id for region in regions)
        _require(is_inside, "a call in a region that is not there", call.id, allowed or "no /")
    _check_columns(call, roles)
    _check_sources(entry, call, before)
    _check_rows(entry, call, before)
    if call.kind is CallKind.TRAIN:
        _check_training(call, roles)
    if call.copied_role is not None:
        fit = [name for name in roles if name != call.role and roles[name] is roles[str(call.role)]]
        is_fit = call.copied_role in fit
        _require(is_fit, f"{call.id} copies no role's weights", call.copied_role, ", ".join(fit))


def _check_columns(call: ModelCall, roles: Roles) -> None:
    """Refuse a call that reads or writes other columns than its method."""
    reads: set[str] = set()
    writes: set[str] = set()
    # Rewards and rollout are not part of the graph: a score writes a column per reward, and
    # generation one per action of onStop, and the kept tokens of truncated sampling.
    may_write_more = call.kind in (CallKind.SCORE, CallKind.GENERATE)
    if call.role is not None:
        primitive = find_primitive(roles[call.role], call.method)
        assert primitive is not None, "call_kind checks this"
        reads, writes = set(primitive.reads), set(primitive.columns_written(call.role))
    if isinstance(call.options, TrainOptions):
        reads |= set(call.options.loss.reads)
    if isinstance(call.options, ComputeOptions):
        for operation in call.options.operations:
            # Columns of an earlier operation of the call are not read from the batch.
            reads |= set(operation.reads) - writes
            writes |= set(operation.writes)
    # More reads are allowed, such as the response mask if the batch has it.
    missing = sorted(reads - set(call.reads))
    _require(not missing, f"{call.id} does not read what it needs", "none", ", ".join(missing))
    other = sorted(writes - set(call.writes))
    if not may_write_more:
        other = sorted(writes ^ set(call.writes))
    written = ", ".join(sorted(writes)) or "nothing"
    _require(
        not other, f"{call.id} writes other columns than its method", ", ".join(other), written
    )


def _check_sources(entry: GraphCall, call: ModelCall, before: Calls) -> None:
    """Refuse columns that nothing before the call has written."""
    # The widest data: `read_manifest_graph` compares with those of the job.
    data = {PROMPTS: PAIR_COLUMNS | {RESPONSE_MASK}, PRETRAINING: PRETRAINING_COLUMNS}
    names = [source.source for source in entry.sources]
    _require(len(set(names)) == len(names), f"{call.id} has a source twice", ", ".join(names), "")
    for source in entry.sources:
        writer = before.get(source.source)
        _require(
            writer is not None or source.source in data,
            f"{call.id} reads from what does not come before it",
            source.source,
            ", ".join([*data, *before]),
        )
        written = data[source.source] if writer is None else {*writer.writes, *writer.carries}
        missing = sorted(set(source.fields) - written)
        _require(
            not missing,
            f"{call.id} reads what {source.source} does not write",
            ", ".join(missing),
            ", ".join(sorted(written)) or "nothing",
        )
    is_fed = bool(entry.sources) or not (call.reads or any(call.auxiliary_reads))
    _require(is_fed, f"{call.id} reads what nothing writes", ", ".join(call.reads), "its sources")


def _check_rows(entry: GraphCall, call: ModelCall, before: Calls) -> None:
    """Refuse impossible numbers of rows, and responses of calls that sample none."""
    rows = entry.rows
    # Only a copy has no batch.
    is_some = rows.expected > 0 and rows.most >= 1
    shown = f"{rows.expected:g} expected and {rows.most} at most"
    _require(
        call.kind is CallKind.COPY or is_some, f"{call.id} works on no rows", shown, "some rows"
    )
    # The tolerance is for rounding of products of expected counts.
    is_bounded = rows.expected <= rows.most * (1 + 1e-9)
    _require(is_bounded, f"{call.id} expects more rows than it may have", shown, "no more")
    if entry.generate is not None:
        samples = entry.generate.samples
        # The maximum is exact; the expected number may be a fraction.
        is_multiple = rows.most % samples == 0
        _require(
            is_multiple, f"{call.id} makes parts of a prompt's samples", shown, f"{samples} each"
        )
        own = f"{call.id} works on responses of others"
        _require(entry.responses == (call.id,), own, ", ".join(entry.responses), call.id)
        return
    sampled = [other.id for other in before.values() if other.kind is CallKind.GENERATE]
    others = [name for name in entry.responses if name not in sampled]
    label = f"{call.id} works on responses of what samples none before it"
    _require(not others, label, ", ".join(others), ", ".join(sampled) or "none")


def _check_training(call: ModelCall, roles: Roles) -> None:
    """Refuse losses that do not fit the role."""
    kind = roles[str(call.role)]
    assert isinstance(call.options, TrainOptions) and issubclass(kind, Model)
    options = call.options
    for losses, fit in (
        ([options.loss], kind.losses),
        (options.auxiliary, kind.auxiliary_losses),
    ):
        wrong = [type(loss).__name__ for loss in losses if not isinstance(loss, fit)]
        allowed = ", ".join(loss.__name__ for loss in fit) or "none"
        label = f"{call.id} trains by a loss that does not fit"
        _require(not wrong, label, ", ".join(wrong), allowed)
    numbers = (len(options.auxiliary), len(call.auxiliary_reads))
    _require(
        numbers[0] == numbers[1],
        f"{call.id} does not say what its auxiliary losses read",
        f"{numbers[1]} lists of fields",
        f"{numbers[0]}",
    )


def _require(condition: bool, label: str, got: str, allowed: str) -> None:
    if not condition:
        limits = f", allowed {allowed}" if allowed else ""
        raise InvalidGraph(
            f"{label}: got {got or 'nothing'}{limits}; run `rlhf fill FILE`, which writes the graph"
        )
