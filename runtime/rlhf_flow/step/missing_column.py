"""The message about a field that is read and was never written, and where fields come from."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from rlhf_api.calls import CallKind
from rlhf_api.plan import ModelHead
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.columns import (
    ANSWER_FIELDS,
    FIELDS,
    PAIR_FIELDS,
    PROMPT_FIELDS,
    Kind,
    field_of,
    role_of,
)
from rlhf_flow.step.operations import BUILT_IN_OPERATIONS, Operation
from rlhf_flow.step.roles import Roles

OF_ROLES = frozenset({Kind.LOG_PROBS, Kind.VALUES, Kind.SCORES})
"""Kinds of fields that models and verifiers write."""


def missing_field_message(
    call: ModelCall, field: str, available: frozenset[str], roles: Roles
) -> str:
    """What a call misses, what it got, where the field could come from and the nearest name."""
    message = (
        f"{call.id} reads the field {field}, which nothing has written: got a batch of "
        f"{', '.join(sorted(available)) or 'no fields'}"
    )
    sources = sources_of(lambda name, _: name == field, roles)
    if field in ANSWER_FIELDS - PROMPT_FIELDS:
        sources.append("the reference answers that data.train.answerField names")
    elif field in PAIR_FIELDS - ANSWER_FIELDS:
        sources.append("the pairs of data.train.preferences")
    if sources:
        message += (
            f"; {field} comes from {' or '.join(sources)}: join its result with `batch |= ...`"
        )
    elif (found := field_of(field)) and role_of(field) != field:
        message += f"; no role of this algorithm writes {field} ({found.meaning}): add one"
    elif found:
        message += (
            f"; {field} ({found.meaning}) is what an operation of your own writes: join "
            f'flow.compute(batch, Custom(..., writes=["{field}"]))'
        )
    else:
        message += "; write it by an operation before, or read another field"
    nearest = get_close_matches(field, available, n=1, cutoff=0.6)
    if not sources and not nearest:
        nearest = get_close_matches(field, sorted(FIELDS), n=1, cutoff=0.6)
    if nearest and nearest[0] != field:
        message += f"; the nearest field is {nearest[0]}"
    return message


def sources_of(fits: Callable[[str, Kind | None], bool], roles: Roles) -> list[str]:
    """Calls of these roles, or operations, that write a field that fits.

    Args:
        fits: whether a field does, by its name and what it holds.
        roles: of the algorithm.
    """
    found = [
        f"flow.{role}.{primitive.method}(batch)"
        for role, kind in roles.items()
        for primitive in kind.primitives
        if any(fits(name, _kind_of(name)) for name in primitive.fields_of(role))
        and (primitive.kind is not CallKind.GENERATE or role == _first_with_text(roles))
    ]
    found += [
        f"flow.compute(batch, {type(operation).__name__}(...))"
        for operation in BUILT_IN_OPERATIONS
        if any(fits(each.column, each.kind) for each in operation.outputs() if not each.keeps_kind)
        and _has_inputs(operation, roles)
    ]
    if any(fits(name, FIELDS[name].kind) for name in PROMPT_FIELDS):
        found.append("the prompts")
    return found


def _has_inputs(operation: Operation, roles: Roles) -> bool:
    """Whether these roles can write what an operation reads, as far as only roles write it: no
    critic, no values."""
    written = {_kind_of(name) for name in _fields_of(roles)}
    kinds = [each.reads.kinds for each in operation.inputs() if each.reads is not None]
    return not any(each <= OF_ROLES and not each & written for each in kinds)


def _fields_of(roles: Roles) -> list[str]:
    """What primitives of these roles write."""
    return [
        name
        for role, kind in roles.items()
        for primitive in kind.primitives
        for name in primitive.fields_of(role)
    ]


def _first_with_text(roles: Roles) -> str | None:
    """The one role that is proposed for generating: several cannot do so on the same GPUs."""
    return next((role for role, kind in roles.items() if kind.head is ModelHead.LM), None)


def _kind_of(name: str) -> Kind | None:
    found = field_of(name)
    return None if found is None else found.kind
