"""Samples of the responses of a pass: chosen and fetched by the driver after the pass."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from rlhf_api.calls import CallKind
from rlhf_api.plan import GraphName
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.stopping import StopReason
from rlhf_flow.step.calls import ModelCall
from rlhf_flow.step.columns import (
    ADVANTAGES,
    EPISODE,
    PROMPT_ID,
    RECORD,
    RESPONSE_MASK,
    RESPONSE_TEXT,
    RESPONSE_TOKENS,
    SAMPLE_INDEX,
    STOP_REASON,
    Kind,
    column_role,
    column_spec,
    scores_column,
    term_scores_column,
    valid_column,
)
from rlhf_flow.step.reward_terms import reward_terms
from rlhf_runtime.controller.batch import Batch, ColumnSegment
from rlhf_runtime.controller.fetched_columns import fetch_columns
from rlhf_runtime.data.load import evaluation_source
from rlhf_runtime.data.row_location import row_in_source
from rlhf_runtime.data.row_names import source_and_row
from rlhf_runtime.dataplane.columns import Column, Rows
from rlhf_runtime.dataplane.partition import BatchShape
from rlhf_runtime.hooks import Hook
from rlhf_runtime.telemetry.conversations import ConversationView, view_of_record
from rlhf_runtime.telemetry.samples import (
    MAX_PROMPT_CHARACTERS,
    MAX_RESPONSE_CHARACTERS,
    MAX_SAMPLES,
    MAX_SAMPLES_PER_PROMPT,
    ResponseSample,
    SampleKind,
    is_sampled,
)
from rlhf_runtime.telemetry.shortened_text import shorten

SAMPLED_GRAPHS: Mapping[GraphName, SampleKind] = {
    GraphName.STEP: SampleKind.STEP,
    GraphName.EVALUATION: SampleKind.EVALUATION,
}
"""The kind of samples of each graph that has some."""

_RESPONSE_COLUMNS = (PROMPT_ID, RECORD, RESPONSE_TEXT, RESPONSE_TOKENS, STOP_REASON, SAMPLE_INDEX)
_OPTIONAL_COLUMNS = (ADVANTAGES, RESPONSE_MASK, EPISODE)


class ResponseColumns:
    """The columns of a pass's responses that samples have, whichever calls wrote them."""

    # References keep shards in the object store until the pass is read. So those of other columns,
    # such as log-probabilities, are neither stored here nor kept alive by a key.

    def __init__(self) -> None:
        # Batches of the same rows are located by the same segments.
        self._batches: dict[tuple[ColumnSegment, ...], Batch] = {}
        # Segments that locate rows of other segments: of a call's result those of its input.
        self._origins: WeakKeyDictionary[ColumnSegment, tuple[ColumnSegment, ...]] = (
            WeakKeyDictionary()
        )
        self._last: tuple[ColumnSegment, ...] | None = None

    def record(self, call: ModelCall, batch: Batch, result: Batch) -> None:
        """Record a call that was sent.

        Args:
            call: the call.
            batch: that it reads.
            result: that it writes.
        """
        batch, result = _sampled_columns(batch), _sampled_columns(result)
        if call.kind is CallKind.GENERATE:
            batch = result
        rows = self._origin(batch.base)
        if result.base != rows:
            # A call wrote it: such a batch has one segment.
            (segment,) = result.base
            self._origins[segment] = rows
        self._batches[rows] = self._batches.get(rows, batch) | batch | result
        if RESPONSE_TEXT in self._batches[rows].columns:
            self._last = rows

    def _origin(self, rows: tuple[ColumnSegment, ...]) -> tuple[ColumnSegment, ...]:
        return self._origins.get(rows[0], rows) if len(rows) == 1 else rows

    @property
    def batch(self) -> Batch | None:
        """The responses of the last call that reads or writes some. None: the pass has none."""
        return None if self._last is None else self._batches[self._last]


def _sampled_columns(batch: Batch) -> Batch:
    """Return a batch with the columns that samples may have."""
    return batch.select(*filter(_may_be_sampled, batch.columns))


def _may_be_sampled(column: str) -> bool:
    if column in (*_RESPONSE_COLUMNS, *_OPTIONAL_COLUMNS):
        return True
    spec = column_spec(column)
    # Scores, and whether they count.
    return spec is not None and spec.kind in (Kind.SCORES, Kind.TRUTH)


@dataclass(frozen=True)
class SampleReader:
    """Reads the samples of a job's passes."""

    spec: RLHFJobSpec

    def wants(self, graph: GraphName, step: int) -> bool:
        """True if samples of a pass are written."""
        kind = SAMPLED_GRAPHS.get(graph)
        return kind is not None and is_sampled(self.spec, kind, step)

    def read(
        self, graph: GraphName, step: int, responses: ResponseColumns, poll: Hook
    ) -> tuple[ResponseSample, ...]:
        """Wait for a pass's samples.

        Args:
            graph: of the pass.
            step: its step.
            responses: of the pass; without any there are no samples.
            poll: called every few seconds.
        """
        batch = responses.batch
        if batch is None:
            return ()
        kind = SAMPLED_GRAPHS[graph]
        rows = chosen_rows(kind, batch.shape)
        scores = self._scores(batch)
        validity = [score.valid for score in scores if score.valid in batch.columns]
        optional = [name for name in _OPTIONAL_COLUMNS if name in batch.columns]
        names = dict.fromkeys(
            [*_RESPONSE_COLUMNS, *optional, *(score.column for score in scores), *validity]
        )
        columns = fetch_columns(batch, tuple(names), rows, poll).load(rows)
        records = [json.loads(text) for text in columns[RECORD].texts()]
        texts, reasons = columns[RESPONSE_TEXT].texts(), columns[STOP_REASON].texts()
        lengths = columns[RESPONSE_TOKENS].lengths
        assert lengths is not None
        advantages = _mean_advantages(columns)
        conversations = _conversations(columns)
        numbers = {score.name: score.numbers(columns) for score in scores}
        return tuple(
            ResponseSample(
                kind=kind,
                step=step,
                prompt_id=int(columns[PROMPT_ID].values[at]),
                sample=int(columns[SAMPLE_INDEX].values[at]),
                row=self._row(graph, int(columns[PROMPT_ID].values[at])),
                prompt=shorten(str(records[at]["prompt"]), MAX_PROMPT_CHARACTERS),
                response=shorten(texts[at], MAX_RESPONSE_CHARACTERS),
                tokens=int(lengths[at]),
                ended_by=StopReason(reasons[at]),
                scores={name: values[at] for name, values in numbers.items()},
                advantage=advantages[at],
                conversation=conversations[at],
            )
            for at in range(len(rows))
        )

    def _scores(self, batch: Batch) -> list[Score]:
        """The scores of a batch: those of the manifest's rewards, or any if it has none."""
        named = []
        for role, terms in reward_terms(self.spec.rewards).items():
            valid = valid_column(role)
            named.append(Score(scores_column(role), role, valid))
            named += [
                Score(term_scores_column(role, term), f"{role}/{term}", valid)
                for term in terms.columns
            ]
        if not named:
            named = [
                Score(column, column_role(column), valid_column(column_role(column)))
                for column in sorted(batch.columns)
                if (spec := column_spec(column)) is not None and spec.kind is Kind.SCORES
            ]
        return [score for score in named if score.column in batch.columns]

    def _row(self, graph: GraphName, prompt_id: int) -> str:
        """The source and number of a prompt's row."""
        data = self.spec.data
        source = evaluation_source(data) if graph is GraphName.EVALUATION else None
        part, row = source_and_row(prompt_id)
        return row_in_source((source or data.train).parts[part], row)


@dataclass(frozen=True)
class Score:
    """A score of responses."""

    column: str
    name: str
    valid: str
    """The column that is true for the rows whose score counts."""

    def numbers(self, columns: Mapping[str, Column]) -> list[float | None]:
        """The score of every row. None: it does not count, or there is none."""
        values = columns[self.column].values
        counts = columns[self.valid].values if self.valid in columns else np.ones(len(values))
        return [
            _number(value) if count else None for value, count in zip(values, counts, strict=True)
        ]


def chosen_rows(kind: SampleKind, shape: BatchShape) -> Rows:
    """Return the rows of a batch whose responses are written: int64, in ascending order.

    They are the first responses to some prompts: in a step, whose prompts are shuffled, to the
    first ones, so that the driver fetches few shards; in an evaluation to prompts at equal
    distances, so that each of several sources has some.

    Args:
        kind: of the pass.
        shape: of the batch.
    """
    samples = min(shape.rows_per_group, MAX_SAMPLES_PER_PROMPT)
    prompts = min(shape.num_groups, MAX_SAMPLES // max(1, samples))
    groups = np.arange(prompts, dtype=np.int64)
    if kind is SampleKind.EVALUATION:
        groups = groups * shape.num_groups // max(1, prompts)
    rows: Rows = (groups[:, None] * shape.rows_per_group + np.arange(samples)).reshape(-1)
    return rows


def _mean_advantages(columns: Mapping[str, Column]) -> list[float | None]:
    """Return the mean advantage of every row's tokens that are trained on. None: there is none."""
    if ADVANTAGES not in columns:
        return [None] * columns[RESPONSE_TOKENS].num_rows
    runs = columns[ADVANTAGES].runs()
    masks = [np.ones(len(run)) for run in runs]
    if RESPONSE_MASK in columns:
        masks = [mask.astype(np.float64) for mask in columns[RESPONSE_MASK].runs()]
    return [
        _number((run.astype(np.float64) * mask).sum() / mask.sum()) if mask.any() else None
        for run, mask in zip(runs, masks, strict=True)
    ]


def _conversations(columns: Mapping[str, Column]) -> Sequence[ConversationView | None]:
    """Return the conversation of every row, shortened. None: it has none."""
    if EPISODE not in columns:
        return [None] * columns[RESPONSE_TOKENS].num_rows
    views = [view_of_record(text) for text in columns[EPISODE].texts()]
    return [None if view is None else view.shortened(MAX_RESPONSE_CHARACTERS) for view in views]


def _number(value: np.floating) -> float | None:
    """Return a number with the digits that float32 has. None: it is not finite."""
    return float(f"{value:.7g}") if math.isfinite(value) else None
