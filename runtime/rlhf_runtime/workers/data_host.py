"""The process with the prompts, which serves each step's rows. A Ray actor without torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rlhf_api.plan import GraphName, Plan
from rlhf_api.spec.job import RLHFJob
from rlhf_flow.step.columns import (
    PREFERENCE,
    PROMPT_ID,
    PROMPT_TOKENS,
    RECORD,
    RESPONSE_MASK,
    RESPONSE_TOKENS,
)
from rlhf_runtime.calls.reports import CallReport, Statistics
from rlhf_runtime.data.load import DataUse, JobPrompts, load_prompts
from rlhf_runtime.data.mixture import Mixture, mixed_rows
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.row_record import row_record
from rlhf_runtime.data.sampler import rows_for_step
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, concatenate, pack_texts
from rlhf_runtime.dataplane.shards import Shard, ShardIndex
from rlhf_runtime.environments.settings import EnvironmentDescription
from rlhf_runtime.python_path import PythonPath
from rlhf_runtime.telemetry.records import Span
from rlhf_runtime.workers.activity import ActivityServer, heartbeat_by_cpu
from rlhf_runtime.workers.process import configure_process, resident_bytes

# Added to the job's seed: the warm start has its own order of rows.
WARM_START_SEED = 1

# Added to the job's seed: data.pretraining has its own order of rows.
PRETRAINING_SEED = 2


class DataHost(ActivityServer):
    """Prompt tables, cut into batches by step."""

    def __init__(self, job: RLHFJob, log_file: Path, python_path: PythonPath, plan: Plan) -> None:
        configure_process(log_file, 1, python_path)
        super().__init__()
        self._job = job
        self._plan = plan

    @heartbeat_by_cpu
    def load(
        self, folders: Mapping[str, Path], environment: EnvironmentDescription | None = None
    ) -> dict[str, int]:
        """Read the data and tokenize it with the policy's tokenizer.

        Args:
            folders: model folder of every role.
            environment: the tools of conversations. None: there are none.

        Returns:
            Counts of rows: by split the usable ones (`train`) and the others (`train_invalid`,
                `train_too_long`).
        """
        tokenizer = TextTokenizer(folders[self._plan.policy], self._job.spec.rollout.end_tokens)
        trains = any(role.is_trained for role in self._plan.roles)
        use = DataUse.from_graphs(self._plan.inputs, trains)
        if environment is not None:
            use = replace(use, environment=environment)
        self._prompts: JobPrompts = load_prompts(self._job.spec, tokenizer, use)
        counts = {}
        for split, table in self._prompts.tables.items():
            counts[split.value] = len(table)
            counts[f"{split.value}_invalid"] = table.rows_invalid
            counts[f"{split.value}_too_long"] = table.rows_too_long
            counts[f"{split.value}_cut"] = table.rows_cut
        return counts

    def batch(self, graph: GraphName, step: int, number: int = 0) -> tuple[bytes, Shard]:
        """Return the prompts that a pass reads: a report, and the rows.

        Args:
            graph: of the plan; evaluation gets all evaluation prompts.
            step: counted from 1.
            number: batch of the step, from 0; flow.repeat may request several.
        """
        start = time.time()
        with self.activity.during("data.batch", step):
            table, rows = self._table(graph), self._rows(graph, step, number)
            shard = batch_of(table, rows, self._plan.inputs[graph].prompts)
            epochs = self._epochs(step) if graph is GraphName.STEP else {}
        return _report("batch", shard, start, epochs), shard

    def pretraining(self, graph: GraphName, step: int) -> tuple[bytes, Shard]:
        """Return the rows of data.pretraining that a pass reads: a report, and the rows.

        Args:
            graph: of the plan.
            step: counted from 1.
        """
        start, spec = time.time(), self._job.spec
        with self.activity.during("data.pretraining", step):
            table, count = self._prompts.pretraining, spec.pretraining_rows_per_step
            assert table is not None and count is not None
            seed = spec.schedule.seed + PRETRAINING_SEED
            rows = rows_for_step(step - 1, len(table), count, spec.data.shuffle, seed)
            shard = batch_of(table, rows, self._plan.inputs[graph].pretraining)
        return _report("pretraining", shard, start), shard

    def _table(self, graph: GraphName) -> PromptTable:
        evaluation = self._prompts.evaluation
        if graph is not GraphName.EVALUATION:
            return self._prompts.train
        assert evaluation is not None
        return evaluation

    def _rows(self, graph: GraphName, step: int, number: int) -> NDArray[np.int64]:
        schedule = self._job.spec.schedule
        if graph is GraphName.EVALUATION:
            return np.arange(len(self._table(graph)), dtype=np.int64)
        count, seed = schedule.prompts_per_step, schedule.seed
        if graph is GraphName.WARM_START:
            assert schedule.warm_start is not None
            count, seed = schedule.warm_start.prompts_per_step, seed + WARM_START_SEED
        # Batches of one step follow each other in the epoch's order.
        all_batches = count * self._plan.inputs[graph].prompt_batches
        shuffle, table = self._job.spec.data.shuffle, self._prompts.train
        if table.sources:
            mixture = Mixture(self._job.spec.data.train.weights, all_batches)
            rows = mixed_rows(step - 1, mixture, table.sizes, shuffle, seed)
        else:
            rows = rows_for_step(step - 1, len(table), all_batches, shuffle, seed)
        return rows[number * count :][:count]

    def _epochs(self, step: int) -> dict[str, float]:
        """Return the metrics of each source's passes over its rows, after a step."""
        spec, table = self._job.spec, self._prompts.train
        if not table.sources:
            return {}
        batches = self._plan.inputs[GraphName.STEP].prompt_batches
        mixture = Mixture(spec.data.train.weights, spec.schedule.prompts_per_step * batches)
        rows = mixture.before(step)
        return {
            f"data/{name}/epochs": float(rows[index] / table.sizes[index])
            for index, name in enumerate(table.sources)
        }


def _report(
    method: str, shard: Shard, start: float, epochs: Mapping[str, float] | None = None
) -> bytes:
    # Only rows with answers have tokens that are trained on.
    tokens = int(shard.index.lengths.sum()) if RESPONSE_TOKENS in shard.columns else 0
    span = Span("data", "", method, start, time.time())
    statistics = Statistics(maxima=epochs or {}, sums={"batch/tokens": tokens})
    return CallReport(f"data.{method}", statistics, (span,), resident_bytes()).to_bytes()


def batch_of(table: PromptTable, rows: NDArray[np.int64], fields: Sequence[str]) -> Shard:
    """Build a batch of table rows: one row per prompt, or two per pair, the chosen one first.

    Args:
        table: the prompts.
        rows: row numbers in the table.
        fields: the columns to build.
    """
    groups = np.arange(len(rows), dtype=np.int64)
    answers = _responses(table.answers, table.rejected, rows)
    mask = table.answers_mask
    if mask is not None:
        mask = _responses(mask, table.rejected_mask, rows)
    if table.rejected is not None:
        rows, groups = np.repeat(rows, 2), np.repeat(groups, 2)
    prompts = table.prompts.take(rows)
    # Built lazily: a job reads few of these columns.
    make: dict[str, Callable[[], Column]] = {
        PROMPT_ID: lambda: Column(table.source_rows[rows]),
        PROMPT_TOKENS: lambda: prompts,
        RECORD: lambda: pack_texts([_record(table, row) for row in rows]),
        RESPONSE_TOKENS: lambda: answers,
        PREFERENCE: lambda: Column(np.tile(np.array([1, -1], dtype=np.int8), len(rows) // 2)),
    }
    if mask is not None:
        make[RESPONSE_MASK] = lambda: mask
    assert prompts.lengths is not None and answers.lengths is not None
    lengths = prompts.lengths + (answers.lengths if RESPONSE_TOKENS in fields else 0)
    index = ShardIndex(np.arange(len(rows)), groups, lengths.astype(np.int32))
    return Shard(index, {field: make[field]() for field in fields})


def _record(table: PromptTable, row: int) -> str:
    marked = table.marked_texts[row] if table.marked_texts else ""
    return row_record(table.texts[row], table.records[row], table.source_name(row), marked)


def _responses(answers: Column, rejected: Column | None, rows: NDArray[np.int64]) -> Column:
    """Return a column of the responses to some prompts, those of a pair one after the other."""
    chosen = answers.take(rows)
    if rejected is None:
        return chosen
    both = concatenate([chosen, rejected.take(rows)])
    return both.take(np.arange(2 * len(rows)).reshape(2, -1).T.reshape(-1))
