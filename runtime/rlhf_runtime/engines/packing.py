"""Micro-batches: prompts and responses packed into sequences for one forward pass.

Responses to the same prompt share it: a sequence is a prompt followed by one or more of its
responses, each of which attends to the prompt and to itself only. The prompt is then computed once
instead of once per response. Sequences are padded on the right to the longest of the micro-batch;
no real token ever attends to padding.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column, Rows, run_positions
from rlhf_runtime.dataplane.micro_batches import cut_micro_batches
from rlhf_runtime.devices import to_device
from rlhf_runtime.engines.kept_tokens import KeptTokens
from rlhf_sizing.costs import SequenceCost
from rlhf_sizing.limits import MAX_SHARED_TOKENS

T = TypeVar("T")


@dataclass(frozen=True)
class MicroBatch:
    """Sequences for one forward pass, and the positions of their n response tokens."""

    token_ids: torch.Tensor
    """int64[sequences, longest]."""
    position_ids: torch.Tensor | None
    """int64[sequences, longest]; None if every sequence has one response: 0, 1, 2, ..."""
    attention_mask: torch.Tensor | None
    """bool[sequences, 1, longest, longest], true where attention is allowed; None if every sequence
    has one response: plain causal attention."""
    predictors: torch.Tensor
    """int64[n]: the position, in the flattened `token_ids`, whose output predicts the token."""
    targets: torch.Tensor
    """int64[n]: the response tokens."""
    rows: torch.Tensor
    """int64[responses]: row of each response in the batch that the micro-batch was cut from."""
    response_lengths: torch.Tensor
    """int64[responses]: number of predicted tokens of each response; the sum is n."""
    ends: torch.Tensor
    """int64[responses]: position, in the flattened `token_ids`, of the last token of each response,
    or of its prompt if the response is empty."""
    tokens: torch.Tensor
    """int64[n]: index of each target in the batch's packed response column."""
    kept: KeptTokens | None = None
    """The tokens that truncated sampling kept for each target, on the host. None: all tokens."""

    def to(self, device: torch.device) -> MicroBatch:
        """Copy to another device."""
        if device.type == "cpu":
            return self
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__}
        moved: dict[str, Any] = {
            name: to_device(field, device)
            for name, field in fields.items()
            if isinstance(field, torch.Tensor)
        }
        return replace(self, **moved)

    def select(self, kept: torch.Tensor) -> MicroBatch:
        """The same sequences with fewer predicted tokens.

        Args:
            kept: bool[n], true for tokens that are still predicted.
        """
        row_of = torch.repeat_interleave(torch.arange(len(self.rows)), self.response_lengths)
        return replace(
            self,
            predictors=self.predictors[kept],
            targets=self.targets[kept],
            tokens=self.tokens[kept],
            response_lengths=torch.bincount(row_of[kept], minlength=len(self.rows)),
            kept=None if self.kept is None else self.kept.select(kept),
        )


@dataclass(frozen=True)
class Packing:
    """Settings of packing rows into sequences and micro-batches."""

    max_padded_tokens: int
    """Maximum padded tokens of a micro-batch; a longer sequence is alone."""
    cost: SequenceCost
    """Costs of sequences, which decide which responses share a prompt."""
    share_prompts: bool
    """True if responses to one prompt may share it."""


def pack_micro_batches(
    prompts: Column,
    responses: Column,
    groups: NDArray[np.int64],
    packing: Packing,
    rows: Rows | None = None,
    keep_groups: bool = False,
    kept_tokens: Column | None = None,
) -> list[MicroBatch]:
    """Pack rows into micro-batches.

    Args:
        prompts: packed prompt of every row.
        responses: packed response of every row.
        groups: int64[all rows]; rows of one group share their prompt where it is the same.
        packing: settings.
        rows: rows to pack; None: all.
        keep_groups: True to keep the rows of a group in one micro-batch.
        kept_tokens: encoded sets of every row. None: sampling kept all tokens.
    """
    assert prompts.lengths is not None and responses.lengths is not None
    chosen = np.arange(len(groups), dtype=np.int64) if rows is None else rows
    if packing.share_prompts:
        sequences = group_into_sequences(
            chosen,
            prompts.lengths,
            responses.lengths,
            _number_prompts(chosen, prompts, groups),
            packing.cost,
            packing.max_padded_tokens,
        )
    else:  # one response per sequence, so that no custom mask is needed
        sequences = [np.asarray([row]) for row in chosen]
    lengths = np.asarray(
        [prompts.lengths[members[0]] + responses.lengths[members].sum() for members in sequences],
        dtype=np.int64,
    )
    units = np.asarray([groups[members[0]] for members in sequences]) if keep_groups else None
    parts = [
        _lay_out(prompts, responses, [sequences[number] for number in part])
        for part in cut_micro_batches(lengths, packing.max_padded_tokens, units)
    ]
    if kept_tokens is None:
        return parts
    kept = KeptTokens.from_column(kept_tokens, responses.lengths)
    return [replace(part, kept=kept.select(part.tokens)) for part in parts]


def empty_micro_batch() -> MicroBatch:
    """One token and no response: takes part in collectives and contributes nothing."""
    nothing = torch.zeros(0, dtype=torch.long)
    token = torch.zeros(1, 1, dtype=torch.long)
    return MicroBatch(token, None, None, nothing, nothing, nothing, nothing, nothing, nothing)


def pad_batches(items: Sequence[T], count: int, filler: T) -> Iterator[T]:
    """The items, followed by fillers up to a total of `count`."""
    # For ranks with fewer forward passes than others, whose collectives they must join.
    yield from items
    yield from repeat(filler, count - len(items))


def _lay_out(prompts: Column, responses: Column, sequences: list[Rows]) -> MicroBatch:
    """Lay out sequences: each prompt, then its responses one after the other."""
    # Vectorized over all tokens: a loop over rows would dominate the time of small models.
    counts = np.asarray([len(rows) for rows in sequences])
    rows = np.concatenate(sequences)
    first = np.cumsum(counts) - counts
    prompt, response = prompts.take(rows[first]), responses.take(rows)
    assert prompt.lengths is not None and response.lengths is not None
    # Index of each response's first token among all response tokens.
    before = np.cumsum(response.lengths, dtype=np.int64) - response.lengths
    # Offset of each response within its sequence: its prompt and earlier responses come before.
    offsets = np.repeat(prompt.lengths - before[first], counts) + before
    longest = int((prompt.lengths + np.add.reduceat(response.lengths, first)).max())
    bases = np.arange(len(sequences), dtype=np.int64) * longest
    prompt_positions = run_positions(bases, prompt.lengths)
    response_positions = run_positions(np.repeat(bases, counts) + offsets, response.lengths)
    token_ids = np.zeros(len(sequences) * longest, dtype=np.int64)
    token_ids[prompt_positions] = prompt.values
    token_ids[response_positions] = response.values
    # The prompt's last token predicts the first token of every response, though only the first
    # response follows it directly.
    predictors = response_positions - 1
    starts = before[response.lengths > 0]
    ends_of_prompts = np.repeat(bases + prompt.lengths - 1, counts)
    predictors[starts] = ends_of_prompts[response.lengths > 0]
    ends = ends_of_prompts.copy()
    ends[response.lengths > 0] = response_positions[
        (before + response.lengths - 1)[response.lengths > 0]
    ]
    shape = (len(sequences), longest)
    position_ids = attention_mask = None
    if (counts > 1).any():
        # Every response continues at the position after its prompt, as if it were alone.
        within = np.arange(len(response_positions)) - np.repeat(before, response.lengths)
        position_ids = np.zeros(len(token_ids), dtype=np.int64)
        position_ids[prompt_positions] = prompt_positions - np.repeat(bases, prompt.lengths)
        position_ids[response_positions] = within + np.repeat(
            np.repeat(prompt.lengths, counts), response.lengths
        )
        number = np.arange(len(rows)) - np.repeat(first, counts)
        segments = np.full(len(token_ids), -1, dtype=np.int64)
        segments[prompt_positions] = 0
        segments[response_positions] = np.repeat(number + 1, response.lengths)
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
    """Attention mask, bool[sequences, 1, longest, longest], of prompts with several responses.

    Args:
        segments: int64[sequences, longest]; 0 for the prompt, 1, 2, ... for responses, -1 for
            padding.
    """
    # Padding attends to padding and the prompt: an empty row of the mask would give NaN.
    keys, queries = segments[:, None, :], segments[:, :, None]
    longest = segments.shape[1]
    causal = torch.ones(longest, longest, dtype=torch.bool).tril()
    return (((keys == 0) | (keys == queries)) & causal)[:, None]


def _number_prompts(rows: Rows, prompts: Column, groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the prompts of each group, in the order of groups: int64[all rows]."""
    # An environment's observation may differ between the conversations of a group.
    assert prompts.lengths is not None
    starts = prompts.starts()
    ends = starts + prompts.lengths
    numbers = np.zeros(len(groups), dtype=np.int64)
    known: dict[tuple[int, bytes], int] = {}
    for row in rows[np.argsort(groups[rows], kind="stable")].tolist():
        prompt = (int(groups[row]), prompts.values[starts[row] : ends[row]].tobytes())
        numbers[row] = known.setdefault(prompt, len(known))
    return numbers


def group_into_sequences(
    rows: Rows,
    prompt_lengths: NDArray[np.int32],
    response_lengths: NDArray[np.int32],
    groups: NDArray[np.int64],
    cost: SequenceCost,
    max_tokens: int,
) -> list[Rows]:
    """Choose which rows of a group share a sequence.

    A row joins a sequence if that is cheaper than computing the prompt again. A sequence is split
    again if its attention mask costs more than all that it saves. Rows of one group need not be
    consecutive; within a sequence they keep their order.

    Args:
        rows: rows to group.
        prompt_lengths: tokens of every row's prompt.
        response_lengths: tokens of every row's response.
        groups: rows of one group have the same prompt.
        cost: of a sequence of the model, on its device.
        max_tokens: longest sequence with several responses, up to `MAX_SHARED_TOKENS`.
    """
    longest = min(MAX_SHARED_TOKENS, max_tokens)
    ordered = rows[np.argsort(groups[rows], kind="stable")]
    sequences: list[list[int]] = []
    group = length = -1
    for row in ordered.tolist():
        prompt, response = int(prompt_lengths[row]), int(response_lengths[row])
        joined = cost.shared(length + response) - cost.shared(length)
        is_cheaper = joined < cost.alone(prompt + response)
        if groups[row] == group and is_cheaper and length + response <= longest:
            sequences[-1].append(row)
            length += response
        else:
            sequences.append([row])
            group, length = int(groups[row]), prompt + response
    result: list[Rows] = []
    for members in sequences:
        prompt, lengths = int(prompt_lengths[members[0]]), response_lengths[members].tolist()
        alone = sum(cost.alone(prompt + response) for response in lengths)
        is_shared = cost.shared(prompt + sum(lengths)) < alone
        parts = [members] if is_shared else [[row] for row in members]
        result.extend(np.asarray(part, dtype=np.int64) for part in parts)
    return result
