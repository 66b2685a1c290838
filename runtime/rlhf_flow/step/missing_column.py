"""The message about a column that is read and was never written, and the sources of columns."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches

from rlhf_api.calls import CallKind
from rlhf_api.plan import ModelHead
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.columns import (
    ANSWER_COLUMNS,
    COLUMNS,
    PAIR_COLUMNS,
    PROMPT_COLUMNS,
    Kind,
    column_role,
    column_spec,
)
from rlhf_flow.step.operations import BUILT_IN_OPERATIONS, Operation
from rlhf_flow.step.roles import Roles

# Kinds of columns that models and verifiers write.
ROLE_KINDS = frozenset({Kind.LOG_PROBS, Kind.VALUES, Kind.SCORES})


def missing_column_message(
    call: ModelCall, column: str, available: frozenset[str], roles: Roles
) -> str:
    """Say which column a call misses, what its batch has, what could write it, the nearest name."""
    message = (
        f"{call.id} reads the column {column}, which nothing has written: got a batch of "
        f"{', '.join(sorted(available)) or 'no columns'}"
    )
    sources = column_sources(lambda name, _: name == column, roles)
    if column in ANSWER_COLUMNS - PROMPT_COLUMNS:
        sources.append("the reference answers that data.train.answerField names")
    elif column in PAIR_COLUMNS - ANSWER_COLUMNS:
        sources.append("the pairs of data.train.preferences")
    if sources:
        message += (
            f"; {column} comes from {' or '.join(sources)}: join its result with `batch |= ...`"
        )
    # A standard column of a role, such as critic_values: the algorithm lacks the role.
    elif (spec := column_spec(column)) and column_role(column) != column:
        message += f"; no role of this algorithm writes {column} ({spec.meaning}): add one"
    elif spec:
        message += (
            f"; {column} ({spec.meaning}) is what an operation of your own writes: join "
            f'flow.compute(batch, Custom(..., writes=["{column}"]))'
        )
    else:
        message += "; write it by an operation before, or read another column"
    # Of the batch first: that column is written, and a slip of spelling is the usual cause.
    nearest = get_close_matches(column, available, n=1, cutoff=0.6)
    if not sources and not nearest:
        nearest = get_close_matches(column, sorted(COLUMNS), n=1, cutoff=0.6)
    if nearest and nearest[0] != column:
        message += f"; the nearest column is {nearest[0]}"
    return message


def column_sources(fits: Callable[[str, Kind | None], bool], roles: Roles) -> list[str]:
    """Calls of these roles, and operations, that write a fitting column; as a step spells them.

    Args:
        fits: True for a fitting column, by its name and kind.
        roles: of the algorithm.
    """
    sources = [
        f"flow.{role}.{primitive.method}(batch)"
        for role, kind in roles.items()
        for primitive in kind.primitives
        if any(fits(name, _kind_of(name)) for name in primitive.columns_written(role))
        # Responses come from one role: see _generating_role.
        and (primitive.kind is not CallKind.GENERATE or role == _generating_role(roles))
    ]
    sources += [
        f"flow.compute(batch, {type(operation).__name__}(...))"
        for operation in BUILT_IN_OPERATIONS
        # One that keeps a column's kind needs the column first.
        if any(fits(out.column, out.kind) for out in operation.outputs() if not out.keeps_kind)
        and _has_inputs(operation, roles)
    ]
    if any(fits(name, COLUMNS[name].kind) for name in PROMPT_COLUMNS):
        sources.append("the prompts")
    return sources


def _has_inputs(operation: Operation, roles: Roles) -> bool:
    """True if these roles write the columns that an operation needs of roles."""
    # Without a critic there are no values, and so Gae is no source of advantages.
    written = {
        _kind_of(name)
        for role, kind in roles.items()
        for primitive in kind.primitives
        for name in primitive.columns_written(role)
    }
    kinds = [column.reads.kinds for column in operation.inputs() if column.reads is not None]
    return not any(accepted <= ROLE_KINDS and not accepted & written for accepted in kinds)


def _generating_role(roles: Roles) -> str | None:
    # Only the first language model is proposed: several cannot generate on the same GPUs.
    return next((role for role, kind in roles.items() if kind.head is ModelHead.LM), None)


def _kind_of(name: str) -> Kind | None:
    spec = column_spec(name)
    return None if spec is None else spec.kind
