"""Micro-batches: rows of prompt and response tokens laid out for one forward pass.

Rows are padded on the right to the longest of the micro-batch. Attention is causal, so no real
token ever sees padding, and no attention mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_runtime.dataplane.columns import Column, Rows, run_positions
from rlhf_runtime.dataplane.partition import micro_batches


@dataclass(frozen=True)
class MicroBatch:
    """Rows for one forward pass.

    `token_ids[rows, longest]`; `targets[n]`: all response tokens, row by row; `predictors[n]`: for
    each the position, in the flattened `token_ids`, whose output predicts it; `rows[rows]`:
    positions in the batch it was cut from; `response_lengths[rows]`; `tokens[n]`: where each target
    lies in the batch's packed response column.
    """

    token_ids: torch.Tensor
    predictors: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    response_lengths: torch.Tensor
    tokens: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        if device.type == "cpu":
            return self
        return MicroBatch(*(getattr(self, name).to(device) for name in self.__dataclass_fields__))


def cut(
    prompts: Column, responses: Column, max_padded_tokens: int, rows: Rows | None = None
) -> list[MicroBatch]:
    """Rows, by default all, as micro-batches of at most so many padded tokens.

    Columns are packed token ids.
    """
    assert prompts.lengths is not None and responses.lengths is not None
    lengths = prompts.lengths + responses.lengths
    chosen = np.arange(len(lengths), dtype=np.int64) if rows is None else rows
    return [
        _lay_out(prompts, responses, chosen[part])
        for part in micro_batches(lengths[chosen], max_padded_tokens)
    ]


def empty_micro_batch() -> MicroBatch:
    """One token and no target: takes part in collectives without contributing anything."""
    nothing = torch.zeros(0, dtype=torch.long)
    return MicroBatch(
        torch.zeros(1, 1, dtype=torch.long), nothing, nothing, nothing, nothing, nothing
    )


def _lay_out(prompts: Column, responses: Column, rows: Rows) -> MicroBatch:
    assert prompts.lengths is not None and responses.lengths is not None
    prompt, response = prompts.take(rows), responses.take(rows)
    assert prompt.lengths is not None and response.lengths is not None
    longest = max(1, int((prompt.lengths + response.lengths).max(initial=0)))
    row_starts = np.arange(len(rows), dtype=np.int64) * longest
    token_ids = np.zeros(len(rows) * longest, dtype=np.int64)
    token_ids[run_positions(row_starts, prompt.lengths)] = prompt.values
    places = run_positions(row_starts + prompt.lengths, response.lengths)
    token_ids[places] = response.values
    tokens = run_positions(responses.starts()[rows], response.lengths)
    return MicroBatch(
        token_ids=torch.from_numpy(token_ids.reshape(len(rows), longest)),
        predictors=torch.from_numpy(places - 1),
        targets=torch.from_numpy(response.values.astype(np.int64)),
        rows=torch.from_numpy(np.asarray(rows, dtype=np.int64)),
        response_lengths=torch.from_numpy(response.lengths.astype(np.int64)),
        tokens=torch.from_numpy(tokens),
    )


def in_step(micro_batches: Sequence[MicroBatch], count: int) -> Iterator[MicroBatch]:
    """The micro-batches, followed by empty ones until there are `count`."""
    yield from micro_batches
    for _ in range(count - len(micro_batches)):
        yield empty_micro_batch()
