"""Rows ready for use: token ids of prompts and answers, and what verifiers need to know of each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.data.errors import DatasetTooSmall, MissingAnswer
from rlhf_runtime.data.rows import Split
from rlhf_runtime.dataplane.columns import Column


@dataclass(frozen=True, slots=True)
class PromptTable:
    """The usable rows of a source, in its order.

    split: data.train, data.pretraining or data.evaluation.
    prompts: token ids of each prompt, a packed int32 column; none is empty or over the limit. Of a
        whole text its first token.
    texts: the text that each prompt's token ids stand for, chat template included.
    records: the source's row as a JSON object.
    answers: token ids of each reference answer, of pairs of the chosen response, with the end
        token, a packed int32 column; a run is empty where a row has no answer. Of a whole text all
        tokens but the first.
    rejected: those of pairs' other response; None where the source has no pairs.
    source_rows: int64, the row's number in the source, counted from 0.
    rows_read: rows of the source, unusable ones included.
    rows_invalid: rows left out by onInvalidRow: skip.
    rows_too_long: rows left out by onLongPrompt: skip.
    rows_cut: whole texts of which a part is left out.
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

    def __len__(self) -> int:
        """Number of usable rows."""
        return len(self.texts)

    def record(self, index: int) -> dict[str, Any]:
        """The source's row behind a prompt."""
        record: dict[str, Any] = json.loads(self.records[index])
        return record

    def longest_prompt(self) -> tuple[int, int]:
        """The row of the source with the longest prompt, and the prompt's tokens."""
        assert self.prompts.lengths is not None
        index = int(self.prompts.lengths.argmax())
        return int(self.source_rows[index]), int(self.prompts.lengths[index])

    def require_rows(self, count: int, setting: str, batches: int = 1) -> None:
        """Check that a step's batches can be filled with different rows.

        count: rows in a batch.
        setting: the manifest's field that asks for them, for the message.
        batches: that a step may take.

        Raises:
            DatasetTooSmall: fewer rows than that.
        """
        if len(self) < count * batches:
            left_out = self.rows_invalid + self.rows_too_long
            skipped = f" ({left_out} of {self.rows_read} rows were skipped)" if left_out else ""
            raise DatasetTooSmall(
                f"data.{self.split.value} has fewer rows than a step needs: got {len(self)} usable "
                f"rows{skipped}, allowed at least {setting} = {count}"
                + (f", {batches} times, as flow.repeat may ask for" if batches > 1 else "")
                + f"; add rows, or set {setting} to at most {len(self) // batches}"
            ).at("spec", *setting.split("."))

    def require_answers(self) -> None:
        """Check that every row has a reference answer, as a warm start needs.

        Raises:
            MissingAnswer: some have none; the message names the first.
        """
        assert self.answers.lengths is not None
        missing = np.flatnonzero(self.answers.lengths == 0)
        if len(missing):
            first = int(self.source_rows[missing[0]])
            raise MissingAnswer(
                f"a warm start needs a reference answer in every row of data.{self.split.value}: "
                f"got {len(missing)} of {len(self)} rows without one, the first is row {first}, "
                f"allowed a text or a number; set data.{self.split.value}.answerField, or remove "
                "schedule.warmStart"
            )
