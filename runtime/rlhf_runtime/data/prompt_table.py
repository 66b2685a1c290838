"""Rows ready for use: token ids of prompts and answers, and the records for verifiers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.data.errors import DatasetTooSmall, MissingAnswer
from rlhf_runtime.data.row_names import JointRowNames, RowNames, joint_row, source_and_row
from rlhf_runtime.data.source_setting import Split
from rlhf_runtime.dataplane.columns import Column, concatenate


@dataclass(frozen=True, slots=True)
class PromptTable:
    """The usable rows of a source, in its order.

    split: data.train, data.pretraining or data.evaluation.
    prompts: token ids of each prompt, a packed int32 column; none is empty or over the limit. For
        pretraining texts the first token.
    texts: the text of each prompt's token ids, chat template included.
    records: the source's row as a JSON object.
    marked_texts: the text of each prompt with OBSERVATION_MARK where an environment's observation
        belongs; empty texts if none is added.
    answers: token ids of each reference answer, or of each pair's chosen response, with the end
        token, a packed int32 column; empty for a row without an answer. For pretraining texts all
        tokens but the first.
    rejected: token ids of each pair's rejected response; None if the source has no pairs.
    answers_mask: 1 for each token of `answers` that is trained on, 0 for context between answers, a
        packed int8 column; None: all are trained on.
    rejected_mask: that of `rejected`; None without pairs, too.
    source_rows: int64, the row's number in the source, counted from 0; of several sources its
        `joint_row`.
    rows_read: rows of the source, including unusable ones.
    rows_invalid: rows skipped by onInvalidRow: Skip.
    rows_too_long: rows skipped by onLongPrompt: Skip.
    rows_cut: pretraining texts that were truncated.
    row_names: of the source's rows, for messages.
    sources: names of several sources, whose rows follow each other; empty for a single one.
    sizes: rows of each of these.
    """

    split: Split
    prompts: Column
    texts: tuple[str, ...]
    records: tuple[str, ...]
    answers: Column
    rejected: Column | None
    source_rows: NDArray[np.int64]
    rows_read: int
    rows_invalid: int
    rows_too_long: int
    rows_cut: int = 0
    answers_mask: Column | None = None
    rejected_mask: Column | None = None
    row_names: RowNames = field(default_factory=RowNames)
    sources: tuple[str, ...] = ()
    sizes: tuple[int, ...] = ()
    marked_texts: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Number of usable rows."""
        return len(self.texts)

    def record(self, index: int) -> dict[str, Any]:
        """Return the source's row of a prompt."""
        record: dict[str, Any] = json.loads(self.records[index])
        return record

    def source_name(self, index: int) -> str | None:
        """Return the name of a prompt's source; None for a single one."""
        if not self.sources:
            return None
        return self.sources[source_and_row(int(self.source_rows[index]))[0]]

    def row_name(self, index: int) -> str:
        """Return the name of a prompt's row for messages."""
        return self.row_names.name(int(self.source_rows[index]))

    def longest_prompt(self) -> tuple[int, int]:
        """Return the row number in the source of the longest prompt, and its tokens."""
        assert self.prompts.lengths is not None
        index = int(self.prompts.lengths.argmax())
        return int(self.source_rows[index]), int(self.prompts.lengths[index])

    def require_rows(self, count: int, setting: str, batches: int = 1) -> None:
        """Check that a step's batches can be filled with different rows.

        count: rows in a batch.
        setting: the manifest's field with this number, for the message.
        batches: maximum of batches in a step.

        Raises:
            DatasetTooSmall: fewer rows than that.
        """
        if len(self) < count * batches:
            num_skipped = self.rows_invalid + self.rows_too_long
            skipped = (
                f" ({num_skipped} of {self.rows_read} rows were skipped)" if num_skipped else ""
            )
            raise DatasetTooSmall(
                f"data.{self.split.value} has fewer rows than a step needs: got {len(self)} usable "
                f"rows{skipped}, allowed at least {setting} = {count}"
                + (f", {batches} times, as flow.repeat may ask for" if batches > 1 else "")
                + f"; add rows, or set {setting} to at most {len(self) // batches}"
            ).at("spec", *setting.split("."))

    def require_answers(self) -> None:
        """Check that every row has a reference answer, as a warm start requires.

        Raises:
            MissingAnswer: some rows have none; the message names the first.
        """
        assert self.answers.lengths is not None
        # A row with an answer has at least the end token.
        missing = np.flatnonzero(self.answers.lengths == 0)
        if len(missing):
            raise MissingAnswer(
                f"a warm start needs a reference answer in every row of data.{self.split.value}: "
                f"got {len(missing)} of {len(self)} rows without one, the first is "
                f"{self.row_name(missing[0])}, allowed a text or a number; set "
                f"data.{self.split.value}.answerField, or remove schedule.warmStart"
            )


def join_tables(tables: Sequence[PromptTable], names: Sequence[str]) -> PromptTable:
    """Join the tables of several sources: their rows follow each other.

    Args:
        tables: of a split, one for each source.
        names: of the sources; empty for a single one.
    """
    if not names:
        (table,) = tables
        return table
    rejected = [table.rejected for table in tables if table.rejected is not None]
    return PromptTable(
        split=tables[0].split,
        prompts=concatenate([table.prompts for table in tables]),
        texts=tuple(text for table in tables for text in table.texts),
        records=tuple(record for table in tables for record in table.records),
        marked_texts=tuple(text for table in tables for text in table.marked_texts),
        answers=concatenate([table.answers for table in tables]),
        rejected=concatenate(rejected) if rejected else None,
        answers_mask=_join_masks([(table.answers, table.answers_mask) for table in tables]),
        rejected_mask=_join_masks(
            [(t.rejected, t.rejected_mask) for t in tables if t.rejected is not None]
        ),
        source_rows=np.concatenate(
            [joint_row(number, 0) + table.source_rows for number, table in enumerate(tables)]
        ),
        rows_read=sum(table.rows_read for table in tables),
        rows_invalid=sum(table.rows_invalid for table in tables),
        rows_too_long=sum(table.rows_too_long for table in tables),
        rows_cut=sum(table.rows_cut for table in tables),
        row_names=JointRowNames([table.row_names for table in tables], names),
        sources=tuple(names),
        sizes=tuple(map(len, tables)),
    )


def _join_masks(parts: Sequence[tuple[Column, Column | None]]) -> Column | None:
    """Join the masks of several sources, of which some may have none; None if none has one."""
    if all(mask is None for _, mask in parts):
        return None
    return concatenate(
        [
            Column(np.ones(len(tokens.values), dtype=np.int8), tokens.lengths)
            if mask is None
            else mask
            for tokens, mask in parts
        ]
    )
