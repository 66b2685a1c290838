"""Micro-batches: prompts and responses laid out for one forward pass.

Responses to the same prompt share it: a sequence is a prompt followed by one or more of its
responses, each of which sees the prompt and itself only. The prompt is then computed once instead
of once per response. Sequences are padded on the right to the longest of the micro-batch; no real
token ever sees padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column, Rows, run_positions
from rlhf_runtime.dataplane.partition import micro_batches
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.sequences import group_into_sequences
from rlhf_sizing.costs import SequenceCost

T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch:
    """Sequences for one forward pass, and where their responses are.

    With n response tokens to be predicted: `token_ids[sequences, longest]`; `position_ids` alike
    and `attention_mask[sequences, 1, longest, longest]` (True: may be seen), both None where every
    sequence has one response and plain causal attention does; `predictors[n]`: for each of the n
    the position, in the flattened `token_ids`, whose output predicts it; `targets[n]`: these
    tokens; `rows[responses]`: positions in the batch it was cut from;
    `response_lengths[responses]`: how many of the n are of each; `ends[responses]`: in the
    flattened `token_ids`, the last token of each response, or of its prompt where it is empty;
    `tokens[n]`: where each target lies in the batch's packed response column.
    """

    token_ids: torch.Tensor
    position_ids: torch.Tensor | None
    attention_mask: torch.Tensor | None
    predictors: torch.Tensor
    targets: torch.Tensor
    rows: torch.Tensor
    response_lengths: torch.Tensor
    ends: torch.Tensor
    tokens: torch.Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        if device.type == "cpu":
            return self
        given = {name: getattr(self, name) for name in self.__dataclass_fields__}
        moved = {n: to_device(field, device) for n, field in given.items() if field is not None}
        return replace(self, **moved)

    def only(self, kept: torch.Tensor) -> MicroBatch:
        """The same sequences, of whose response tokens only some are predicted.

        Args:
            kept: bool[n], which ones.
        """
        row_of = torch.repeat_interleave(torch.arange(len(self.rows)), self.response_lengths)
        return replace(
            self,
            predictors=self.predictors[kept],
            targets=self.targets[kept],
            tokens=self.tokens[kept],
            response_lengths=torch.bincount(row_of[kept], minlength=len(self.rows)),
        )


@dataclass(frozen=True)
class Packing:
    """How sequences and micro-batches are made."""

    max_padded_tokens: int
    """Padded tokens of a micro-batch; a longer sequence is alone."""
    cost: SequenceCost
    """How dear a token is compared with seeing another one."""
    share_prompts: bool
    """Whether responses to one prompt may share it."""


def cut(
    prompts: Column,
    responses: Column,
    groups: NDArray[np.int64],
    packing: Packing,
    rows: Rows | None = None,
    whole_groups: bool = False,
) -> list[MicroBatch]:
    """Rows, by default all, as micro-batches. Rows of equal `groups` have the same prompt.

    With `whole_groups` those of a group are in one micro-batch.
    """
    assert prompts.lengths is not None and responses.lengths is not None
    chosen = np.arange(len(groups), dtype=np.int64) if rows is None else rows
    sequences = group_into_sequences(
        chosen,
        prompts.lengths,
        responses.lengths,
        groups,
        packing.cost,
        packing.max_padded_tokens,
    )
    if not packing.share_prompts:
        sequences = [np.asarray([row]) for row in chosen]
    lengths = np.asarray(
        [prompts.lengths[held[0]] + responses.lengths[held].sum() for held in sequences],
        dtype=np.int64,
    )
    units = np.asarray([groups[held[0]] for held in sequences]) if whole_groups else None
    return [
        _lay_out(prompts, responses, [sequences[number] for number in part])
        for part in micro_batches(lengths, packing.max_padded_tokens, units)
    ]


def empty_micro_batch() -> MicroBatch:
    """One token and no response: takes part in collectives without contributing anything."""
    nothing = torch.zeros(0, dtype=torch.long)
    token = torch.zeros(1, 1, dtype=torch.long)
    return MicroBatch(token, None, None, nothing, nothing, nothing, nothing, nothing, nothing)


def in_step(items: Sequence[T], count: int, nothing: T) -> Iterator[T]:
    """The items, followed by `nothing` until there are `count`: forward passes of a rank that has
    fewer than others."""
    yield from items
    yield from repeat(nothing, count - len(items))


def _lay_out(prompts: Column, responses: Column, sequences: list[Rows]) -> MicroBatch:
    """Prompts first, then their responses one after the other, all of it vectorised."""
    counts = np.asarray([len(rows) for rows in sequences])
    rows = np.concatenate(sequences)
    first = np.cumsum(counts) - counts
    prompt, response = prompts.take(rows[first]), responses.take(rows)
    assert prompt.lengths is not None and response.lengths is not None
    before = np.cumsum(response.lengths, dtype=np.int64) - response.lengths
    offsets = np.repeat(prompt.lengths - before[first], counts) + before
    longest = int((prompt.lengths + np.add.reduceat(response.lengths, first)).max())
    bases = np.arange(len(sequences), dtype=np.int64) * longest
    prompt_places = run_positions(bases, prompt.lengths)
    places = run_positions(np.repeat(bases, counts) + offsets, response.lengths)
    token_ids = np.zeros(len(sequences) * longest, dtype=np.int64)
    token_ids[prompt_places] = prompt.values
    token_ids[places] = response.values
    predictors = places - 1
    starts = before[response.lengths > 0]
    ends_of_prompts = np.repeat(bases + prompt.lengths - 1, counts)
    predictors[starts] = ends_of_prompts[response.lengths > 0]
    ends = ends_of_prompts.copy()
    ends[response.lengths > 0] = places[(before + response.lengths - 1)[response.lengths > 0]]
    shape = (len(sequences), longest)
    position_ids = attention_mask = None
    if (counts > 1).any():
        within = np.arange(len(places)) - np.repeat(before, response.lengths)
        position_ids = np.zeros(len(token_ids), dtype=np.int64)
        position_ids[prompt_places] = prompt_places - np.repeat(bases, prompt.lengths)
        position_ids[places] = within + np.repeat(
            np.repeat(prompt.lengths, counts), response.lengths
        )
        number = np.arange(len(rows)) - np.repeat(first, counts)
        segments = np.full(len(token_ids), -1, dtype=np.int64)
        segments[prompt_places] = 0
        segments[places] = np.repeat(number + 1, response.lengths)
        attention_mask = _visible(torch.from_numpy(segments.reshape(shape)))
    return MicroBatch(
        token_ids=torch.from_numpy(token_ids.reshape(shape)),
        position_ids=None
        if position_ids is None
        else torch.from_numpy(position_ids.reshape(shape)),
        attention_mask=attention_mask,
        predictors=torch.from_numpy(predictors),
        targets=torch.from_numpy(response.values.astype(np.int64)),
        rows=torch.from_numpy(rows.astype(np.int64)),
        response_lengths=torch.from_numpy(response.lengths.astype(np.int64)),
        ends=torch.from_numpy(ends),
        tokens=torch.from_numpy(run_positions(responses.starts()[rows], response.lengths)),
    )


def _visible(segments: torch.Tensor) -> torch.Tensor:
    """bool[sequences, 1, longest, longest]: who sees whom.

    `segments[sequences, longest]`: 0 for the prompt, 1, 2, ... for responses, -1 for padding, which
    sees padding and the prompt, so that no row of the mask is empty.
    """
    seen, seer = segments[:, None, :], segments[:, :, None]
    longest = segments.shape[1]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    return (((seen == 0) | (seen == seer)) & causal)[:, None]
