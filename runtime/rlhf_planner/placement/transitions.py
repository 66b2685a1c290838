"""Transitions between training and generation: calls that a plan adds to a graph. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from rlhf_api.calls import RELEASE, RESHARD, CallKind
from rlhf_flow.step.calls import ModelCall

# Calls that need almost no memory of a device.
LIGHT = (CallKind.COMPUTE, CallKind.SCORE, CallKind.SAVE)
# True if two calls share ranks.
ShareRanks = Callable[[ModelCall, ModelCall], bool]


def with_transitions(
    calls: Sequence[ModelCall],
    releases: Collection[str],
    share_ranks: ShareRanks,
) -> list[ModelCall]:
    """Add the calls between training and generation to those of a graph.

    A role's weights are resharded before it generates, unless its engines still have them from an
    earlier call of the same region and pass.

    Args:
        calls: in program order.
        releases: roles whose engines release weights and cache after generation, unless the next
            call that needs memory on their ranks generates with the same role.
        share_ranks: true if two calls run on some of the same ranks.

    Source: HybridFlow (arXiv 2409.19256), section 5.1; ReaL (arXiv 2406.14088), section 4.
    """
    result: list[ModelCall] = []
    current: set[str] = set()
    region = ""
    for number, call in enumerate(calls):
        # A region (`flow.every`, `flow.repeat`) may run or not, so the weights that it leaves in
        # the engines are unknown. So are those after the last pass.
        if region_of(call) != region:
            region = region_of(call)
            current.clear()
        # Engines hold old weights after a call that changes the role.
        current -= {role for role in current if call.changes(role)}
        if call.kind is not CallKind.GENERATE:
            result.append(call)
            continue
        assert call.role is not None
        if call.role not in current:
            result.append(generation_call(call, RESHARD, CallKind.RESHARD))
        result.append(call)
        if call.role in releases and not _generates_next(call, calls[number + 1 :], share_ranks):
            result.append(generation_call(call, RELEASE, CallKind.RELEASE))
            current.discard(call.role)
        else:
            current.add(call.role)
    return result


def region_of(call: ModelCall) -> str:
    """The region of a call; empty outside of all regions."""
    return call.id.rpartition("/")[0]


def generation_call(call: ModelCall, method: str, kind: CallKind) -> ModelCall:
    """A call of a role's generation, named after the call that generates."""
    region, slash, site = call.id.rpartition("/")
    _, number, count = site.partition("#")
    name = f"{region}{slash}{call.role}.{method}{number}{count}"
    return ModelCall(name, call.role, method, kind, (), ())


def _generates_next(
    call: ModelCall,
    following: Sequence[ModelCall],
    share_ranks: ShareRanks,
) -> bool:
    """True if the next call that needs memory on a generating call's ranks generates with the same
    role in the same region."""
    for other in following:
        if region_of(other) != region_of(call):
            return False
        # Such calls leave engines where they are: they need no memory there.
        if other.kind in LIGHT or not share_ranks(call, other):
            continue
        return other.kind is CallKind.GENERATE and other.role == call.role
    return False
