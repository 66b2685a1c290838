"""The message about a field that is read and was never written."""

from __future__ import annotations

from difflib import get_close_matches

from rlhf_flow.calls import ModelCall
from rlhf_flow.fields import ANSWER_FIELDS, MEANINGS, PAIR_FIELDS, PROMPT_FIELDS, meaning_of
from rlhf_flow.operations import BUILT_IN_OPERATIONS
from rlhf_flow.roles import Roles


def missing_field_message(
    call: ModelCall, field: str, available: frozenset[str], roles: Roles
) -> str:
    """What a call misses, what it got, where the field could come from and the nearest name."""
    message = (
        f"{call.id} reads the field {field}, which nothing has written: got a batch of "
        f"{', '.join(sorted(available)) or 'no fields'}"
    )
    sources = sources_of(field, roles)
    if sources:
        message += (
            f"; {field} comes from {' or '.join(sources)}: join its result with `batch |= ...`"
        )
    elif meaning := meaning_of(field):
        message += f"; no role of this algorithm writes {field} ({meaning}): add one"
    else:
        message += "; write it by an operation before, or read another field"
    nearest = get_close_matches(field, available, n=1, cutoff=0.6)
    if not sources and not nearest:
        nearest = get_close_matches(field, sorted(MEANINGS), n=1, cutoff=0.6)
    if nearest and nearest[0] != field:
        message += f"; the nearest field is {nearest[0]}"
    return message


def sources_of(field: str, roles: Roles) -> list[str]:
    """Calls of these roles, or operations, that write a field."""
    found = [
        f"flow.{role}.{primitive.method}(batch)"
        for role, kind in roles.items()
        for primitive in kind.primitives
        if field in primitive.fields_of(role)
    ]
    found += [
        f"flow.compute(batch, {type(operation).__name__}(...))"
        for operation in BUILT_IN_OPERATIONS
        if field in operation.writes
    ]
    if field in PROMPT_FIELDS:
        found.append("the prompts")
    elif field in ANSWER_FIELDS:
        found.append("the reference answers that data.train.answerField names")
    elif field in PAIR_FIELDS:
        found.append("the pairs of data.train.preferences")
    return found
