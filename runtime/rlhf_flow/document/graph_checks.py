"""What has to hold between the parts of a graph that a manifest holds: a trace sees to it, but who
wrote the manifest may have written anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlhf_api.calls import CallKind
from rlhf_api.spec.algorithm_graph import AlgorithmGraph, GraphCall, GraphRegion, RegionKind
from rlhf_flow.errors import InvalidGraph
from rlhf_flow.step.calls import ComputeOptions, ModelCall, TrainOptions
from rlhf_flow.step.columns import PAIR_FIELDS, PRETRAINING_FIELDS
from rlhf_flow.step.flow import RESERVED
from rlhf_flow.step.roles import Model, Roles, primitive_of
from rlhf_flow.trace.graph import PRETRAINING, PROMPTS

Calls = Mapping[str, ModelCall]
"""Calls by their ids."""

WITHOUT_ROLE = {"compute": CallKind.COMPUTE, "save": CallKind.SAVE}
"""Methods of the flow itself."""
OPTIONS = {
    CallKind.GENERATE: "generate",
    CallKind.TRAIN: "train",
    CallKind.COMPUTE: "compute",
    CallKind.COPY: "weights_of",
    CallKind.SAVE: "folder",
}
"""The field with what a call of a kind is made with."""


def check_roles_and_regions(given: AlgorithmGraph) -> None:
    """Refuse names that are there twice, or that no role may have, and impossible numbers.

    Raises:
        InvalidGraph: there is one.
    """
    for what, names in (
        ("role", [each.name for each in given.roles]),
        ("region", [each.id for each in given.regions]),
        ("call", [each.id for each in given.calls]),
    ):
        twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        _require(not twice, f"a {what} that is there twice", ", ".join(twice), "one of each name")
    reserved = [each.name for each in given.roles if each.name in RESERVED]
    _require(not reserved, "a role of a name that none may have", ", ".join(reserved), "another")
    for region in given.regions:
        is_every = region.kind is RegionKind.EVERY
        is_possible = region.expected_count <= 1 if is_every else region.expected_count >= 1
        _require(
            is_possible,
            f"{region.id} runs impossibly often",
            f"expectedCount {region.expected_count:g}",
            "at most 1 for Every, at least 1 for Repeat",
        )


def kind_of_call(given: GraphCall, roles: Roles) -> CallKind:
    """What a call does.

    Raises:
        InvalidGraph: a role that is not there, or that cannot do it.
    """
    if given.role is None:
        kind = WITHOUT_ROLE.get(given.method)
        known = kind is not None
        _require(known, f"{given.id} is of no role", given.method, "compute or save")
        assert kind is not None
        return kind
    _require(given.role in roles, f"{given.id} is of an unknown role", given.role, ", ".join(roles))
    found = primitive_of(roles[given.role], given.method)
    methods = ", ".join(each.method for each in roles[given.role].primitives)
    _require(found is not None, f"{given.id} is what {given.role} cannot do", given.method, methods)
    assert found is not None
    return found.kind


def check_call(
    given: GraphCall,
    call: ModelCall,
    roles: Roles,
    before: Calls,
    regions: Sequence[GraphRegion],
) -> None:
    """Refuse a call that no step makes.

    Args:
        given: as it is written.
        call: the same, read.
        roles: of the graph.
        before: the calls that come before it.
        regions: of the graph.

    Raises:
        InvalidGraph: it is one.
    """
    wanted = OPTIONS.get(call.kind)
    options = {name: bool(getattr(given, name)) for name in OPTIONS.values()}
    got = [name for name, is_given in options.items() if is_given]
    expected = [] if wanted is None else [wanted]
    _require(
        got == expected,
        f"{call.id} is made with what its method does not take, or without what it needs",
        ", ".join(got) or "nothing",
        ", ".join(expected) or "nothing",
    )
    if "/" in call.id:
        is_known = any(call.id.startswith(f"{each.id}/") for each in regions)
        known = ", ".join(each.id for each in regions)
        _require(is_known, "a call in a region that is not there", call.id, known or "no /")
    _check_fields(call, roles)
    _check_sources(given, call, before)
    _check_rows(given, call, before)
    if call.kind is CallKind.TRAIN:
        _check_training(call, roles)
    if call.copied_role is not None:
        fit = [name for name in roles if name != call.role and roles[name] is roles[str(call.role)]]
        is_fit = call.copied_role in fit
        _require(is_fit, f"{call.id} copies no role's weights", call.copied_role, ", ".join(fit))


def _check_fields(call: ModelCall, roles: Roles) -> None:
    """Refuse a call that does not write what it has to, or reads less than it needs."""
    reads: set[str] = set()
    writes: set[str] = set()
    may_write_more = call.kind is CallKind.SCORE
    if call.role is not None:
        primitive = primitive_of(roles[call.role], call.method)
        assert primitive is not None, "its kind was found by it"
        reads, writes = set(primitive.reads), set(primitive.fields_of(call.role))
    if isinstance(call.options, TrainOptions):
        reads |= set(call.options.loss.reads)
    if isinstance(call.options, ComputeOptions):
        for operation in call.options.operations:
            reads |= set(operation.reads) - writes
            writes |= set(operation.writes)
    missing = sorted(reads - set(call.reads))
    _require(not missing, f"{call.id} does not read what it needs", "none", ", ".join(missing))
    other = sorted(writes - set(call.writes))
    if not may_write_more:
        other = sorted(writes ^ set(call.writes))
    written = ", ".join(sorted(writes)) or "nothing"
    _require(not other, f"{call.id} writes something else than it does", ", ".join(other), written)


def _check_sources(given: GraphCall, call: ModelCall, before: Calls) -> None:
    """Refuse fields that nothing before the call has written."""
    data = {PROMPTS: PAIR_FIELDS, PRETRAINING: PRETRAINING_FIELDS}
    names = [each.source for each in given.sources]
    _require(len(set(names)) == len(names), f"{call.id} has a source twice", ", ".join(names), "")
    for each in given.sources:
        maker = before.get(each.source)
        is_there = maker is not None or each.source in data
        _require(
            is_there,
            f"{call.id} reads from what does not come before it",
            each.source,
            ", ".join([*data, *before]),
        )
        made = data[each.source] if maker is None else {*maker.writes, *maker.carries}
        lost = sorted(set(each.fields) - made)
        _require(
            not lost,
            f"{call.id} reads what {each.source} does not write",
            ", ".join(lost),
            ", ".join(sorted(made)) or "nothing",
        )
    is_fed = bool(given.sources) or not (call.reads or any(call.auxiliary_reads))
    _require(is_fed, f"{call.id} reads what nothing writes", ", ".join(call.reads), "its sources")


def _check_rows(given: GraphCall, call: ModelCall, before: Calls) -> None:
    """Refuse numbers of rows that no call has, and responses of calls that sample none."""
    rows = given.rows
    is_some = rows.expected > 0 and rows.most >= 1
    shown = f"{rows.expected:g} expected and {rows.most} at most"
    _require(
        call.kind is CallKind.COPY or is_some, f"{call.id} works on no rows", shown, "some rows"
    )
    is_bounded = rows.expected <= rows.most * (1 + 1e-9)
    _require(is_bounded, f"{call.id} expects more rows than it may have", shown, "no more")
    if given.generate is not None:
        samples = given.generate.samples
        is_whole = rows.most % samples == 0
        _require(is_whole, f"{call.id} makes parts of a prompt's samples", shown, f"{samples} each")
        own = f"{call.id} works on responses of others"
        _require(given.responses == (call.id,), own, ", ".join(given.responses), call.id)
        return
    sampled = [each.id for each in before.values() if each.kind is CallKind.GENERATE]
    others = [each for each in given.responses if each not in sampled]
    what = f"{call.id} works on responses of what samples none before it"
    _require(not others, what, ", ".join(others), ", ".join(sampled) or "none")


def _check_training(call: ModelCall, roles: Roles) -> None:
    """Refuse losses that do not fit the role."""
    kind = roles[str(call.role)]
    assert isinstance(call.options, TrainOptions) and issubclass(kind, Model)
    options = call.options
    for losses, fit in (
        ([options.loss], kind.losses),
        (options.auxiliary, kind.auxiliary_losses),
    ):
        odd = [type(each).__name__ for each in losses if not isinstance(each, fit)]
        allowed = ", ".join(each.__name__ for each in fit) or "none"
        _require(not odd, f"{call.id} trains by a loss that does not fit", ", ".join(odd), allowed)
    numbers = (len(options.auxiliary), len(call.auxiliary_reads))
    _require(
        numbers[0] == numbers[1],
        f"{call.id} does not say what its auxiliary losses read",
        f"{numbers[1]} lists of fields",
        f"{numbers[0]}",
    )


def _require(holds: bool, what: str, got: str, allowed: str) -> None:
    if not holds:
        limits = f", allowed {allowed}" if allowed else ""
        raise InvalidGraph(
            f"{what}: got {got or 'nothing'}{limits}; run `rlhf fill FILE`, which writes the graph"
        )
