"""Runs a user's operation and checks its result before anything else reads it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlhf_flow.step.column_settings import ColumnOutput
from rlhf_flow.step.columns import ENOUGH, PER_ROW, PER_TOKEN, Kind
from rlhf_flow.step.operations import Custom
from rlhf_flow.step.operations.custom import STATE
from rlhf_runtime import user_code
from rlhf_runtime.dataplane.columns import Column, pack, pack_texts
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.roles.sequences import RESPONSES

Columns = Mapping[str, Column]

OperationState = dict[str, torch.Tensor]
"""State that operations keep between steps, by name: float64 scalars, the same on every rank."""


def run_custom(
    operation: Custom, columns: Columns, num_rows: int, state: OperationState
) -> dict[str, Column]:
    """Run a user's function and return the columns that it writes.

    Without rows it is not called.

    Args:
        operation: names the function.
        columns: of the batch; the function gets those that it reads.
        num_rows: of the batch.
        state: updated with the state that the function keeps.

    Raises:
        UserCodeFailed: the function raises, or its result is invalid.
    """
    if not num_rows:
        # A rank may have no rows; user code should not have to handle that.
        return {out.column: _empty_column(out.kind) for out in operation.outputs()}
    function = user_code.load("the custom operation", operation.entrypoint)
    # Only the declared columns: the plan moves no others.
    read = {name: columns[name] for name in operation.reads}
    # Functions see plain floats; checkpoints store tensors.
    kept = {name: float(state.get(name, initial)) for name, initial in operation.keeps.items()}
    arguments = {**operation.arguments, **({STATE: kept} if kept else {})}
    title = _title(operation, function)
    result = user_code.call(title, function, read, **arguments)
    if problem := _result_problem(operation, result) or _state_problem(operation, kept):
        raise UserCodeFailed(f"{title} {problem}")
    responses = columns.get(RESPONSES)
    for output in operation.outputs():
        if problem := _column_problem(output, result[output.column], num_rows, responses):
            raise UserCodeFailed(f"{title} returns {output.column} {problem}")
    # After all checks, so that a function that fails leaves the state unchanged.
    state.update({n: torch.tensor(float(kept[n]), dtype=torch.float64) for n in operation.keeps})
    return {name: result[name] for name in operation.writes}


def _empty_column(kind: Kind | None) -> Column:
    """Build a column without rows, in the form that its readers expect."""
    # Of unknown kind it is packed: a packed column can also be read by row.
    if kind in PER_ROW:
        return Column(np.zeros(0, dtype=np.float32))
    return pack_texts([]) if kind is Kind.TEXT else pack([], np.float32)


def _title(operation: Custom, function: Callable[..., Any]) -> str:
    """Name the operation in messages, with file and line of its function."""
    code = getattr(function, "__code__", None)
    location = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    return f"the custom operation {operation.entrypoint}{location}"


def _result_problem(operation: Custom, result: object) -> str:
    """Describe the first fault of a function's result; empty if it has none."""
    allowed = f"allowed a mapping with {', '.join(operation.writes)}"
    if not isinstance(result, Mapping):
        return f"returns no mapping: got {type(result).__name__}, {allowed}; return one"
    if missing := [name for name in operation.writes if name not in result]:
        got = ", ".join(map(str, result)) or "nothing"
        return f"does not return {', '.join(missing)}: got {got}, {allowed}; add it, or rename"
    return ""


def _state_problem(operation: Custom, kept: Mapping[str, object]) -> str:
    """Describe the first fault of the state that a function keeps; empty if it has none."""
    if different := sorted(kept.keys() ^ operation.keeps.keys()):
        return (
            f"keeps other names than keeps= lists: got {', '.join(map(str, kept)) or 'nothing'} in "
            f"{STATE}, allowed {', '.join(operation.keeps)}; add {different[0]} to keeps=, or to "
            f"{STATE}"
        )
    for name, value in kept.items():
        try:
            is_finite = math.isfinite(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, RuntimeError):
            is_finite = False
        if not is_finite:
            return (
                f"keeps a value that is not a finite number: got {STATE}[{name!r}] = "
                f"{value!r:.100}, allowed one number, which checkpoints store; convert it by "
                "float(...)"
            )
    return ""


def _column_problem(
    output: ColumnOutput, column: object, num_rows: int, responses: Column | None
) -> str:
    """Describe the first fault of a column that a function returns; empty if it has none."""
    kind = output.kind
    if not isinstance(column, Column):
        return (
            f"as something else: got {type(column).__name__}, allowed a Column; write "
            "Column(values), or Column(values, lengths) for values per token"
        )
    if not isinstance(column.values, np.ndarray):
        return (
            f"as a Column of something else: got {type(column.values).__name__}, allowed a numpy "
            "array; write Column(np.asarray(values))"
        )
    if column.num_rows != num_rows:
        return (
            f"for other rows: got {column.num_rows}, allowed one entry for each of the {num_rows} "
            "rows, in their order; give Column(values, lengths) the rows' own lengths"
        )
    if kind in PER_TOKEN and column.lengths is None:
        return (
            f"with one value per row: got no lengths, allowed {kind.value}; write "
            'Column(np.repeat(values, lengths), lengths) with columns["response_tokens"].lengths'
        )
    if kind in PER_ROW and (column.lengths is not None or column.values.ndim != 1):
        return f"with several values per row: got {_shape(column)}, allowed {kind.value}; drop them"
    if kind in PER_TOKEN and responses is not None and responses.lengths is not None:
        assert column.lengths is not None
        different = np.flatnonzero(column.lengths != responses.lengths)
        if len(different):
            row = int(different[0])
            return (
                f"of other lengths than the responses: got {int(column.lengths[row])} values in "
                f"row {row}, allowed {int(responses.lengths[row])}; take the lengths of "
                'columns["response_tokens"]'
            )
    if kind is Kind.TEXT and (column.lengths is None or column.values.dtype != np.uint8):
        return f"as {column.values.dtype}: allowed texts; write pack_texts(texts)"
    is_number = column.values.dtype.kind in "biuf"
    if column.values.dtype.kind == "O" or (kind in PER_TOKEN | PER_ROW and not is_number):
        return f"as {column.values.dtype}: allowed numbers; convert it"
    # The condition of flow.repeat is one answer for the complete batch.
    if output.column == ENOUGH and len(np.unique(column.values)) > 1:
        return (
            "with different answers: got both in one batch, allowed the same in every row; write "
            "Column(np.full(num_rows, answer))"
        )
    return ""


def _shape(column: Column) -> str:
    return "lengths" if column.lengths is not None else f"shape {column.values.shape}"
