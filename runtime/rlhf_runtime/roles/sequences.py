"""Inference over a rank's rows: from a model's outputs to packed columns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_flow.step.columns import KEPT_TOKENS
from rlhf_runtime.calls.inputs import CallInputs
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.training import HeadReading, ReadValues, TokenOutputs, TrainingEngine
from rlhf_runtime.roles.context import Result

PROMPTS, RESPONSES = "prompt_tokens", "response_tokens"


def as_tensor(column: Column, dtype: torch.dtype | None = None) -> torch.Tensor:
    """Copy a column's values into a tensor."""
    # Arrays from the object store are read-only, which torch.from_numpy warns about.
    tensor = torch.tensor(column.values)
    return tensor if dtype is None else tensor.to(dtype)


def lengths_of(column: Column) -> torch.Tensor:
    """Return the row lengths as int64."""
    assert column.lengths is not None
    return torch.tensor(column.lengths, dtype=torch.int64)


def infer(
    engine: TrainingEngine,
    inputs: CallInputs,
    micro_batch_tokens: int,
    field: str,
    reading: HeadReading,
) -> Result:
    """Run a forward pass over this rank's rows.

    The result has one float32 per response token, packed, in the column `field`.
    """
    rows = inputs.rows()
    columns = inputs.load(rows)
    responses = columns[RESPONSES]
    values = torch.zeros(len(responses.values), dtype=torch.float32)

    def consume(outputs: TokenOutputs, part: MicroBatch) -> None:
        # Micro-batches reorder rows; `tokens` are positions in the batch's column.
        values[part.tokens] = outputs.values.cpu()

    index = inputs.index.find(rows)
    packing = engine.packing(micro_batch_tokens)
    parts = pack_micro_batches(
        columns[PROMPTS],
        responses,
        index.groups,
        packing,
        kept_tokens=columns.get(KEPT_TOKENS),
    )
    engine.infer(parts, reading, consume)
    return Result(columns={field: Column(values.numpy(), responses.lengths)}, index=index)


def infer_scores(
    engine: TrainingEngine,
    prompts: Column,
    responses: Column,
    groups: NDArray[np.int64],
    micro_batch_tokens: int,
) -> torch.Tensor:
    """Score each row after its last token: float32[rows].

    Args:
        engine: of a model with a scalar head.
        prompts: token ids of the rows.
        responses: token ids of the rows; a row without any is scored after its prompt.
        groups: rows of the same number have the same prompt, int64[rows].
        micro_batch_tokens: padded tokens to run at once.
    """
    # Equal rows run once: the last digits depend on a row's neighbours in its micro-batch, and
    # equal responses with different scores would look as if one were better.
    scores = torch.zeros(len(groups), dtype=torch.float32)
    first = _first_duplicates(prompts, responses, groups)

    def consume(outputs: TokenOutputs, part: MicroBatch) -> None:
        scores[part.rows] = outputs.values.cpu()

    packing = engine.packing(micro_batch_tokens)
    parts = pack_micro_batches(prompts, responses, groups, packing, np.unique(first))
    engine.infer([replace(part, predictors=part.ends) for part in parts], ReadValues(), consume)
    # Duplicates get the score of their first row.
    return scores[torch.from_numpy(first)]


def _first_duplicates(
    prompts: Column, responses: Column, groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return, for each row, the first row with the same prompt and response."""
    first_rows: dict[tuple[int, bytes, bytes], int] = {}
    rows = zip(groups.tolist(), prompts.runs(), responses.runs(), strict=True)
    return np.asarray(
        [
            first_rows.setdefault((group, prompt.tobytes(), response.tobytes()), row)
            for row, (group, prompt, response) in enumerate(rows)
        ],
        dtype=np.int64,
    )
