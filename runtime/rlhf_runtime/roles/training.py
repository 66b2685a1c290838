"""The walk over epochs, mini-batches and micro-batches that policies and critics share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from numpy.typing import NDArray

from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.engines.packing import MicroBatch, cut
from rlhf_runtime.engines.parallel import ParallelContext
from rlhf_runtime.engines.training import TrainingEngine
from rlhf_runtime.numerics.aggregation import Denominators
from rlhf_runtime.roles.own_tokens import OwnTokens
from rlhf_runtime.roles.sequences import PROMPTS, RESPONSES
from rlhf_runtime.telemetry.spread import Spread
from rlhf_runtime.workers.inputs import BatchInputs
from rlhf_runtime.workers.orders import Statistics, larger

Keep = Callable[[Mapping[str, Column], OwnTokens], torch.Tensor]
"""Says of columns, and of the tokens that count, which of the rows do: bool[rows]."""


@dataclass(frozen=True)
class MiniBatch:
    """This rank's part of a mini-batch, with the counts of all of it."""

    columns: dict[str, Column]
    groups: NDArray[np.int64]
    """int64[rows]: rows of the same number answer the same prompt."""
    kept: torch.Tensor
    """bool[rows]: whether a row counts in the loss."""
    own_tokens: OwnTokens
    """Which of its response tokens do."""
    denominators: Denominators
    share: float
    """This rank's weight in means over mini-batches and ranks."""


def mini_batches(
    inputs: BatchInputs,
    parallel: ParallelContext,
    fixed_length: int,
    valid: str | None = None,
    keep: Keep | None = None,
) -> list[MiniBatch]:
    """The batch's mini-batches in order, rows balanced over ranks by tokens.

    Args:
        inputs: the batch.
        parallel: the ranks that share the batch.
        fixed_length: by which a sum over tokens is divided where that is asked for.
        valid: the field that says which rows count; the others are carried along. None: all do.
        keep: says which of them count, too. None: all do.

    Raises:
        UserCodeFailed: a response mask that is none.
    """
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
    own = [_own_tokens(batch, part) for batch, part in zip(selected, parts, strict=True)]
    kept = [_kept(*each, valid, keep) for each in zip(selected, own, strict=True)]
    counts = parallel.sum(
        torch.tensor([_counts(each.counts[k]) for each, k in zip(own, kept, strict=True)])
    )
    return [
        MiniBatch(
            batch,
            group,
            kept_rows,
            own_tokens,
            Denominators(int(tokens), int(sequences), fixed_length),
            1.0 / parallel.data_size,
        )
        for batch, group, kept_rows, own_tokens, (tokens, sequences) in zip(
            selected, groups, kept, own, counts.tolist(), strict=True
        )
    ]


def micro_batches(
    batch: MiniBatch,
    engine: TrainingEngine,
    max_padded_tokens: int,
    rows: Rows | None = None,
    complete_groups: bool = False,
) -> list[MicroBatch]:
    """Rows of a mini-batch, by default all, as micro-batches for an engine, in which the tokens
    that count are predicted; with `complete_groups` rows of a prompt are in one, however many
    tokens these have."""
    parts = cut(
        batch.columns[PROMPTS],
        batch.columns[RESPONSES],
        batch.groups,
        engine.packing(max_padded_tokens),
        rows,
        complete_groups,
    )
    return [part.select(batch.own_tokens.flags[part.tokens]) for part in parts]


def compared_micro_batches(
    batch: MiniBatch, engine: TrainingEngine, max_padded_tokens: int, rows: Rows | None = None
) -> tuple[list[MicroBatch], list[MicroBatch]]:
    """Rows whose loss compares those of a prompt: micro-batches with all of a prompt's rows, and
    those over which rows are split whose tokens together are too many for one."""
    whole: list[MicroBatch] = []
    too_large: list[MicroBatch] = []
    for part in micro_batches(batch, engine, max_padded_tokens, rows, complete_groups=True):
        fits = part.token_ids.numel() <= max_padded_tokens or len(part.rows) == 1
        (whole if fits else too_large).append(part)
    if not too_large:
        return whole, []
    split = np.sort(np.concatenate([part.rows.numpy() for part in too_large]))
    return whole, micro_batches(batch, engine, max_padded_tokens, split)


def _own_tokens(columns: Mapping[str, Column], rows: Rows) -> OwnTokens:
    lengths = columns[RESPONSES].lengths
    assert lengths is not None
    return OwnTokens.of(columns, lengths, rows)


def _kept(
    columns: Mapping[str, Column], own: OwnTokens, valid: str | None, keep: Keep | None
) -> torch.Tensor:
    kept = torch.ones(columns[RESPONSES].num_rows, dtype=torch.bool)
    if valid is not None:
        kept = torch.tensor(columns[valid].values).bool()
    return kept if keep is None else kept & keep(columns, own)


def _counts(tokens: torch.Tensor) -> list[int]:
    """Tokens that count of some rows, and rows with at least one."""
    return [int(tokens.sum()), int((tokens > 0).sum())]


class Means:
    """Collects weighted means, maxima, sums and spreads while a call runs.

    What is on a device is read when all of it is asked for: the host would wait for it otherwise.
    """

    def __init__(self) -> None:
        self._totals: list[tuple[str, float | torch.Tensor, float]] = []
        """Of means: name, what is added, weight."""
        self._largest: list[tuple[str, float | torch.Tensor]] = []
        self._sums: dict[str, float] = {}
        self._spreads: dict[str, Spread] = {}

    def add(self, name: str, total: float | torch.Tensor, weight: float) -> None:
        """Add to a mean.

        Args:
            name: of the metric.
            total: a number, or a tensor of one.
            weight: by how much the mean's divisor grows.
        """
        self._totals.append((name, _detached(total), weight))

    def spread(self, name: str, values: torch.Tensor) -> None:
        """Add numbers to those of which a metric is the standard deviation."""
        added = Spread.of(values.numpy())
        before = self._spreads.get(name)
        self._spreads[name] = added if before is None else before.joined(added)

    def count(self, name: str, amount: float) -> None:
        """Add to a sum over ranks."""
        self._sums[name] = self._sums.get(name, 0.0) + amount

    def statistics(self) -> Statistics:
        """Everything, for the report."""
        means: dict[str, tuple[float, float]] = {}
        totals = _numbers([total for _, total, _ in self._totals])
        for (name, _, weight), total in zip(self._totals, totals, strict=True):
            before = means.get(name, (0.0, 0.0))
            means[name] = (before[0] + total, before[1] + weight)
        maxima: dict[str, float] = {}
        largest = _numbers([value for _, value in self._largest])
        for (name, _), value in zip(self._largest, largest, strict=True):
            maxima[name] = larger(maxima.get(name, value), value)
        return Statistics(means, maxima, self._sums, self._spreads)

    def note_update(self, role: str, rate: float, norm: float, share: float) -> None:
        """How an optimizer step of a role went; norms that are not finite left it out."""
        self.add(f"{role}/gradient_norm", norm * share, share)
        self.count(f"{role}/skipped_updates", 0.0 if isfinite(norm) else share)
        self.add(f"{role}/learning_rate", rate * share, share)

    def note_tokens(self, role: str, batch: MiniBatch) -> None:
        """How many tokens of all ranks count in a loss that is a mean of its tokens."""
        tokens = batch.denominators.num_tokens
        self.add(f"{role}/loss_tokens", tokens * batch.share, batch.share)

    def max(self, name: str, value: float | torch.Tensor) -> None:
        """Raise a maximum: by a number, or a tensor of one."""
        self._largest.append((name, _detached(value)))


def _detached(value: float | torch.Tensor) -> float | torch.Tensor:
    return value.detach() if isinstance(value, torch.Tensor) else value


def _numbers(values: list[float | torch.Tensor]) -> list[float]:
    """All as numbers, brought to the host together."""
    on_device = [value.double() for value in values if isinstance(value, torch.Tensor)]
    found = iter(torch.stack(on_device).tolist() if on_device else ())
    return [next(found) if isinstance(value, torch.Tensor) else value for value in values]
