"""Mini-batches and micro-batches of a rank, for policies, critics and reward models alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_flow.step.columns import KEPT_TOKENS, RESPONSE_MASK
from rlhf_runtime.calls.inputs import BatchInputs
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.engines.packing import MicroBatch, pack_micro_batches
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.errors import UserCodeFailed
from rlhf_runtime.numerics.losses import Denominators
from rlhf_runtime.numerics.padding import pad
from rlhf_runtime.roles.sequences import PROMPTS, RESPONSES


class LossMask(NamedTuple):
    """Marks the response tokens that count in losses and statistics: the policy's own."""

    flags: torch.Tensor
    """bool[tokens]: True if the token counts; packed, row after row."""
    counts: torch.Tensor
    """int64[rows]: number of counting tokens per row."""

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Column], lengths: NDArray[np.int32], rows: Rows
    ) -> LossMask:
        """Read the batch's response mask; without one every response token counts.

        Args:
            columns: of the rows.
            lengths: tokens of each row's response.
            rows: their numbers in the batch, for messages.

        Raises:
            UserCodeFailed: the mask does not fit these responses.
        """
        mask = columns.get(RESPONSE_MASK)
        response_lengths = torch.tensor(lengths, dtype=torch.int64)
        if mask is None:
            num_tokens = int(response_lengths.sum())
            return cls(torch.ones(num_tokens, dtype=torch.bool), response_lengths)
        if problem := _mask_problem(mask, lengths, rows):
            raise UserCodeFailed(f"{RESPONSE_MASK} {problem}")
        flags = torch.tensor(mask.values != 0)
        return cls(flags, pad(flags, response_lengths)[0].sum(dim=1))


def _mask_problem(mask: Column, lengths: NDArray[np.int32], rows: Rows) -> str:
    """Describe the first fault of a response mask; empty if it has none."""
    if mask.lengths is None:
        return (
            "has one value per row: got no lengths, allowed one value for each response token; "
            'write Column(mask, columns["response_tokens"].lengths)'
        )
    different = np.flatnonzero(mask.lengths != lengths)
    if len(different):
        first = different[0]
        return (
            f"has other lengths than the responses: got {int(mask.lengths[first])} values in row "
            f"{int(rows[first])}, allowed {int(lengths[first])}; write "
            'Column(mask, columns["response_tokens"].lengths)'
        )
    invalid = np.flatnonzero(~np.isin(mask.values, (0, 1)))
    if len(invalid):
        row = int(rows[np.searchsorted(np.cumsum(lengths), invalid[0], side="right")])
        return (
            f"has another value than 0 and 1: got {mask.values[invalid[0]]} in row {row}, allowed "
            "1 for a token of the policy's own and 0 for one that is not trained on; correct the "
            "operation that writes it"
        )
    return ""


RowFilter = Callable[[Mapping[str, Column], LossMask], torch.Tensor]
"""Selects rows that count in a loss, from columns and their loss mask: bool[rows]."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's part of a mini-batch, with the counts of the complete one."""

    columns: dict[str, Column]
    groups: NDArray[np.int64]
    """int64[rows]: rows of the same number answer the same prompt."""
    kept: torch.Tensor
    """bool[rows]: True if the row counts in the loss."""
    loss_mask: LossMask
    """Marks the response tokens that count."""
    denominators: Denominators
    share: float
    """This rank's weight in means over mini-batches and ranks."""

    @property
    def is_empty(self) -> bool:
        """True if no row counts in the loss, on any rank."""
        return self.denominators.num_sequences == 0


def mini_batches(
    inputs: BatchInputs,
    parallel: ParallelContext,
    fixed_length: int,
    counted: Sequence[str] = (),
    row_filter: RowFilter | None = None,
) -> list[MiniBatch]:
    """Cut the batch into its mini-batches, in order, rows balanced over ranks by tokens.

    Args:
        inputs: the batch.
        parallel: the ranks that share the batch.
        fixed_length: divisor of token sums under SEQUENCE_MEAN_FIXED_LENGTH.
        counted: columns that are all true for rows that count; the others are carried along.
            Empty: all rows count.
        row_filter: excludes further rows. None: no others.

    Raises:
        UserCodeFailed: the response mask does not fit the responses.
    """
    # Loaded once for all mini-batches, then cut.
    parts = inputs.mini_batches()
    columns = inputs.load(np.concatenate(parts))
    bounds = np.cumsum([0, *(len(part) for part in parts)])
    selected = [
        {
            name: column.take(np.arange(begin, end, dtype=np.int64))
            for name, column in columns.items()
        }
        for begin, end in zip(bounds[:-1], bounds[1:], strict=True)
    ]
    groups = [inputs.index.find(part).groups for part in parts]
    masks = [_loss_mask(batch, part) for batch, part in zip(selected, parts, strict=True)]
    kept = [
        _kept_rows(batch, mask, counted, row_filter)
        for batch, mask in zip(selected, masks, strict=True)
    ]
    # Losses divide by counts over all ranks, so that they do not depend on which rank has a row.
    counts = parallel.sum(
        torch.tensor([_counts(mask.counts[k]) for mask, k in zip(masks, kept, strict=True)])
    )
    return [
        MiniBatch(
            batch,
            group,
            kept_rows,
            mask,
            Denominators(int(tokens), int(sequences), fixed_length),
            # The weights of all ranks sum to 1 per mini-batch.
            1.0 / parallel.data_size,
        )
        for batch, group, kept_rows, mask, (tokens, sequences) in zip(
            selected, groups, kept, masks, counts.tolist(), strict=True
        )
    ]


def micro_batches(
    batch: MiniBatch,
    engine: TrainingEngine,
    max_padded_tokens: int,
    rows: Rows | None = None,
    keep_groups: bool = False,
) -> list[MicroBatch]:
    """Pack rows of a mini-batch, by default all, into micro-batches that predict the counting
    tokens only.

    Args:
        batch: the mini-batch.
        engine: computes the micro-batches.
        max_padded_tokens: of a micro-batch; a longer sequence is alone.
        rows: positions in the mini-batch. None: all.
        keep_groups: keep all rows of a prompt in one micro-batch, however many tokens they
            have.
    """
    parts = pack_micro_batches(
        batch.columns[PROMPTS],
        batch.columns[RESPONSES],
        batch.groups,
        engine.packing(max_padded_tokens),
        rows,
        keep_groups,
        batch.columns.get(KEPT_TOKENS),
    )
    # Masked tokens stay in the sequence, as context, but are not predicted.
    return [part.select(batch.loss_mask.flags[part.tokens]) for part in parts]


def comparison_micro_batches(
    batch: MiniBatch, engine: TrainingEngine, max_padded_tokens: int, rows: Rows | None = None
) -> tuple[list[MicroBatch], list[MicroBatch]]:
    """Pack rows for a loss that compares the rows of a prompt.

    Returns:
        Micro-batches that hold all rows of their prompts; and those of the prompts whose rows do
        not fit into one micro-batch and are therefore spread over several.
    """
    complete: list[MicroBatch] = []
    too_large: list[MicroBatch] = []
    for part in micro_batches(batch, engine, max_padded_tokens, rows, keep_groups=True):
        # A single row cannot be split, however long it is.
        fits = part.token_ids.numel() <= max_padded_tokens or len(part.rows) == 1
        (complete if fits else too_large).append(part)
    if not too_large:
        return complete, []
    split = np.sort(np.concatenate([part.rows.numpy() for part in too_large]))
    return complete, micro_batches(batch, engine, max_padded_tokens, split)


def _loss_mask(columns: Mapping[str, Column], rows: Rows) -> LossMask:
    lengths = columns[RESPONSES].lengths
    assert lengths is not None
    return LossMask.from_columns(columns, lengths, rows)


def _kept_rows(
    columns: Mapping[str, Column],
    mask: LossMask,
    counted: Sequence[str],
    row_filter: RowFilter | None,
) -> torch.Tensor:
    kept = all_true(columns, counted)
    return kept if row_filter is None else kept & row_filter(columns, mask)


def all_true(columns: Mapping[str, Column], names: Sequence[str]) -> torch.Tensor:
    """Mark the rows in which all of some columns are true: bool[rows]."""
    marked = torch.ones(columns[RESPONSES].num_rows, dtype=torch.bool)
    for name in names:
        marked = marked & torch.tensor(columns[name].values).bool()
    return marked


def _counts(tokens_per_row: torch.Tensor) -> list[int]:
    # Counting tokens, and rows with at least one of them.
    return [int(tokens_per_row.sum()), int((tokens_per_row > 0).sum())]
