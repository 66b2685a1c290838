"""The prompts of a job: training and evaluation, checked against its schedule."""

from __future__ import annotations

from dataclasses import dataclass

from rlhf_api.spec.data import DataSource, DataSpec, EvaluationData
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import PromptPolicy, build_prompt_table
from rlhf_runtime.data.rows import Split, read_rows
from rlhf_runtime.data.tokenizer import TextTokenizer


@dataclass(frozen=True, slots=True)
class JobPrompts:
    """Prompts to train on; rows beside them, and held-out prompts, if the job has any."""

    train: PromptTable
    pretraining: PromptTable | None
    evaluation: PromptTable | None


def load_prompts(
    spec: RLHFJobSpec,
    tokenizer: TextTokenizer,
    *,
    trains_on_answers: bool = False,
    evaluates: bool = True,
    batches_per_step: int = 1,
) -> JobPrompts:
    """Read, check and tokenize all rows of a job.

    Args:
        spec: of the job.
        tokenizer: the policy's.
        trains_on_answers: whether answers of training data have to fit into a response.
        evaluates: whether held-out prompts are asked for.
        batches_per_step: of schedule.promptsPerStep prompts, that a step may take.

    Raises:
        DataError: whatever is wrong with the data, before anything is trained.
    """
    longest = spec.rollout.max_response_tokens if trains_on_answers else None
    train = _load(spec.data.train, Split.TRAIN, spec, tokenizer, longest)
    per_step = spec.schedule.prompts_per_step
    train.require_rows(per_step, "schedule.promptsPerStep", batches_per_step)
    if spec.schedule.warm_start is not None:
        warm_start = spec.schedule.warm_start
        train.require_rows(warm_start.prompts_per_step, "schedule.warmStart.promptsPerStep")
        train.require_answers()
    held_out = evaluation_source(spec.data) if evaluates else None
    return JobPrompts(
        train,
        _load_pretraining(spec, tokenizer),
        None if held_out is None else _load(held_out, Split.EVALUATION, spec, tokenizer, None),
    )


def _load_pretraining(spec: RLHFJobSpec, tokenizer: TextTokenizer) -> PromptTable | None:
    source, count = spec.data.pretraining, spec.pretraining_rows_per_step
    if source is None or count is None:
        return None
    longest = spec.rollout.max_response_tokens
    table = _load(source, Split.PRETRAINING, spec, tokenizer, longest)
    is_given = source.rows_per_step is not None
    setting = "data.pretraining.rowsPerStep" if is_given else "schedule.promptsPerStep"
    table.require_rows(count, setting)
    return table


def evaluation_source(data: DataSpec) -> EvaluationData | None:
    """Where held-out prompts come from: what the manifest says, else the builtin task's own."""
    if data.evaluation is None and data.train.builtin is not None:
        return EvaluationData(builtin=data.train.builtin)
    return data.evaluation


def _load(
    source: DataSource,
    split: Split,
    spec: RLHFJobSpec,
    tokenizer: TextTokenizer,
    max_answer_tokens: int | None,
) -> PromptTable:
    policy = PromptPolicy(
        spec.rollout.max_prompt_tokens,
        max_answer_tokens,
        spec.data.on_invalid_row,
        spec.data.on_long_prompt,
        spec.rollout.max_prompt_tokens + spec.rollout.max_response_tokens,
    )
    rows = read_rows(source, split, spec.schedule.seed)
    return build_prompt_table(rows, source, split, tokenizer, policy)
