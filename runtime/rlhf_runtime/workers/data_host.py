"""The process that holds the prompts and serves each step's rows. A Ray actor without torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_api.spec.job import RLHFJob
from rlhf_runtime.data.load import JobPrompts, load_prompts
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.sampler import rows_for_step
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, pack_texts
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.workers.activity import Watched, watched_by_effort
from rlhf_runtime.workers.orders import CallReport, Statistics
from rlhf_runtime.workers.process import resident_bytes, settle

PROMPT_COLUMNS = ("prompt_id", "prompt_tokens", "record")
"""What `step_prompts` and `evaluation_prompts` return, in this order."""
ANSWER_COLUMNS = (*PROMPT_COLUMNS, "response_tokens")
"""What `warm_start_rows` returns: the responses are the reference answers."""

WARM_START_SEED = 1
"""Added to the job's seed: the warm start sees the rows in an order of its own."""


class DataHost(Watched):
    """Prompt tables, cut into batches by step number."""

    def __init__(
        self, job: RLHFJob, log_file: Path, python_path: tuple[str, ...], policy: str
    ) -> None:
        settle(log_file, 1, python_path)
        super().__init__()
        self._job = job
        self._policy = policy

    @watched_by_effort
    def load(self, folders: Mapping[str, Path]) -> dict[str, int]:
        """Read and tokenize with the policy's tokenizer. `folders` holds every role's model.

        Returns counts of rows: by split those that are used (`train`), and what became of the
        others (`train_invalid`, `train_too_long`).
        """
        tokenizer = TextTokenizer(folders[self._policy])
        self._prompts: JobPrompts = load_prompts(self._job.spec, tokenizer)
        counts = {}
        for table in (self._prompts.train, self._prompts.evaluation):
            if table is not None:
                split = table.split.value
                counts[split] = len(table)
                counts[f"{split}_invalid"] = table.rows_invalid
                counts[f"{split}_too_long"] = table.rows_too_long
        return counts

    def step_prompts(self, step: int) -> tuple[bytes, Shard]:
        """The prompts of a training step; steps count from 1."""
        rows = self._rows(step, self._job.spec.schedule.prompts_per_step, 0)
        return self._answer("prompts", step, self._prompts.train, rows, PROMPT_COLUMNS)

    def warm_start_rows(self, step: int) -> tuple[bytes, Shard]:
        """Prompts with their answers for a step of the warm start; steps count from 1."""
        warm_start = self._job.spec.schedule.warm_start
        assert warm_start is not None
        rows = self._rows(step, warm_start.prompts_per_step, WARM_START_SEED)
        return self._answer("answers", step, self._prompts.train, rows, ANSWER_COLUMNS)

    def evaluation_prompts(self) -> tuple[bytes, Shard]:
        """All held-out prompts."""
        table = self._prompts.evaluation
        assert table is not None
        rows = np.arange(len(table), dtype=np.int64)
        return self._answer("prompts", 0, table, rows, PROMPT_COLUMNS)

    def _rows(self, step: int, count: int, seed: int) -> NDArray[np.int64]:
        return rows_for_step(
            step - 1,
            len(self._prompts.train),
            count,
            self._job.spec.data.shuffle,
            self._job.spec.schedule.seed + seed,
        )

    def _answer(
        self,
        call: str,
        step: int,
        table: PromptTable,
        rows: NDArray[np.int64],
        names: tuple[str, ...],
    ) -> tuple[bytes, Shard]:
        start = time.time()
        with self.activity.during(f"data.{call}", step):
            columns = {
                "prompt_id": Column(table.source_rows[rows]),
                "prompt_tokens": table.prompts.take(rows),
                "record": pack_texts([_record(table, row) for row in rows]),
            }
            lengths = columns["prompt_tokens"].lengths
            assert lengths is not None
            if "response_tokens" in names:
                answers = table.answers.take(rows)
                assert answers.lengths is not None
                columns["response_tokens"] = answers
                lengths = lengths + answers.lengths
        numbers = np.arange(len(rows), dtype=np.int64)
        span = Span("data", "", call, start, time.time())
        report = CallReport(f"data.{call}", Statistics(), (span,), resident_bytes())
        index = ShardIndex(numbers, numbers, lengths.astype(np.int32))
        return report.message(), Shard(index, columns)


def _record(table: PromptTable, row: int) -> str:
    """What a verifier needs to know about a row, as JSON."""
    return f'{{"prompt": {json.dumps(table.texts[row])}, "record": {table.records[row]}}}'
