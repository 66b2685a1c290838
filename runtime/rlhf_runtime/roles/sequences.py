"""Per-token numbers of responses: from a model's outputs to packed columns and padded tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.engines.packing import MicroBatch, cut
from rlhf_runtime.engines.training import HeadReading, ReadValues, TokenOutputs, TrainingEngine
from rlhf_runtime.roles.context import Result
from rlhf_runtime.workers.inputs import Inputs

PROMPTS, RESPONSES = "prompt_tokens", "response_tokens"


def as_tensor(column: Column, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A column's values as a tensor of their own; arrays from the object store are read-only."""
    tensor = torch.tensor(column.values)
    return tensor if dtype is None else tensor.to(dtype)


def lengths_of(column: Column) -> torch.Tensor:
    """Row lengths as int64."""
    assert column.lengths is not None
    return torch.tensor(column.lengths, dtype=torch.int64)


def infer(
    engine: TrainingEngine,
    inputs: Inputs,
    micro_batch_tokens: int,
    field: str,
    reading: HeadReading,
) -> Result:
    """A forward pass over this rank's rows: one float32 per response token, packed, as `field`."""
    rows = inputs.rows()
    columns = inputs.load(rows)
    responses = columns[RESPONSES]
    values = torch.zeros(len(responses.values), dtype=torch.float32)

    def consume(outputs: TokenOutputs, part: MicroBatch) -> None:
        values[part.tokens] = outputs.values.cpu()

    index = inputs.index.find(rows)
    packing = engine.packing(micro_batch_tokens)
    parts = cut(columns[PROMPTS], responses, index.groups, packing)
    engine.infer(parts, reading, consume)
    return Result(columns={field: Column(values.numpy(), responses.lengths)}, index=index)


def infer_scores(
    engine: TrainingEngine,
    prompts: Column,
    responses: Column,
    groups: NDArray[np.int64],
    micro_batch_tokens: int,
) -> torch.Tensor:
    """What a model with a scalar head gives after the last token of each row: float32 [rows].

    Equal rows are run once: the last digits depend on what is beside a row in its micro-batch, and
    equal responses to a prompt that score differently would look as if one were better.

    Args:
        engine: of a model with a scalar head.
        prompts: token ids of the rows.
        responses: token ids of the rows; a row without any is scored after its prompt.
        groups: rows of the same number have the same prompt, int64 [rows].
        micro_batch_tokens: padded tokens to run at once.
    """
    scores = torch.zeros(len(groups), dtype=torch.float32)
    first = _first_equal(prompts, responses, groups)

    def consume(outputs: TokenOutputs, part: MicroBatch) -> None:
        scores[part.rows] = outputs.values.cpu()

    packing = engine.packing(micro_batch_tokens)
    parts = cut(prompts, responses, groups, packing, np.unique(first))
    engine.infer([replace(part, predictors=part.ends) for part in parts], ReadValues(), consume)
    return scores[torch.from_numpy(first)]


def _first_equal(
    prompts: Column, responses: Column, groups: NDArray[np.int64]
) -> NDArray[np.int64]:
    """For each row the first that has its prompt and its response."""
    found: dict[tuple[int, bytes, bytes], int] = {}
    rows = zip(groups.tolist(), prompts.runs(), responses.runs(), strict=True)
    return np.asarray(
        [
            found.setdefault((group, prompt.tobytes(), response.tobytes()), row)
            for row, (group, prompt, response) in enumerate(rows)
        ],
        dtype=np.int64,
    )
