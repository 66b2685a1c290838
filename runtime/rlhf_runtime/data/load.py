"""The prompts of a job: training and evaluation, checked against its schedule."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass

from rlhf_api.error_collector import ErrorCollector, raise_together
from rlhf_api.plan import GraphInputs, GraphName
from rlhf_api.spec.data import DataSpec, EvaluationData, TrainingData
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.row_sources import DataSource, MixedData
from rlhf_flow.step.columns import RECORD, RESPONSE_TOKENS
from rlhf_runtime.data.errors import DataError, DatasetTooSmall, SourceUnused
from rlhf_runtime.data.mixture import MAX_PERIOD, Mixture
from rlhf_runtime.data.named_columns import require_columns_of_path
from rlhf_runtime.data.prompt_table import PromptTable, join_tables
from rlhf_runtime.data.prompts import BatchLimit, build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.row_responses import DEFAULT_ANSWER_FIELD
from rlhf_runtime.data.rows import preference_fields, read_rows, single_sources
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.environments.settings import EnvironmentDescription


@dataclass(frozen=True, slots=True)
class JobPrompts:
    """The rows of a job."""

    tables: Mapping[Split, PromptTable]
    """By split; only those that the job reads."""

    @property
    def train(self) -> PromptTable:
        """Rows to train on."""
        return self.tables[Split.TRAIN]

    @property
    def pretraining(self) -> PromptTable | None:
        """Rows of data.pretraining, if the job reads any."""
        return self.tables.get(Split.PRETRAINING)

    @property
    def evaluation(self) -> PromptTable | None:
        """Rows to evaluate on, if the job evaluates."""
        return self.tables.get(Split.EVALUATION)


@dataclass(frozen=True)
class DataUse:
    """The ways in which a job's graphs use its data."""

    trains_on_answers: bool = False
    """True if graphs train on answers, which must then fit into a response."""
    evaluates: bool = True
    """True if the job evaluates."""
    batches_per_step: int = 1
    """Maximum of batches of schedule.promptsPerStep prompts in a step."""
    trains: bool = True
    """True if the job trains; else only its evaluation data are read."""
    scores_training: bool = True
    """True if steps score responses to prompts of the training data."""
    environment: EnvironmentDescription | None = None
    """The environments of conversations. None: there are none."""

    @classmethod
    def from_graphs(cls, inputs: Mapping[GraphName, GraphInputs], trains: bool) -> DataUse:
        """Derive the use from the inputs of the job's graphs, and whether they train."""
        return cls(
            any(RESPONSE_TOKENS in graph.prompts for graph in inputs.values()),
            GraphName.EVALUATION in inputs,
            inputs[GraphName.STEP].prompt_batches,
            trains,
            # Verifiers read records.
            RECORD in inputs[GraphName.STEP].prompts,
        )


# Generation only: answers are for verifiers, and the job evaluates.
PROMPTS_ONLY = DataUse()


def load_prompts(
    spec: RLHFJobSpec, tokenizer: TextTokenizer, use: DataUse = PROMPTS_ONLY
) -> JobPrompts:
    """Read, check and tokenize all rows of a job.

    Args:
        spec: of the job.
        tokenizer: the policy's.
        use: of the data.

    Raises:
        DataError: the data is unusable.
        SeveralErrors: several errors.
    """
    gathered = ErrorCollector()
    tables: dict[Split, PromptTable] = {}
    for split, source in sources_in_use(spec, use).items():
        parts = []
        for setting, part in single_sources(split, source):
            with gathered.check():
                parts.append(load_table(spec, setting, part, tokenizer, use))
        if len(parts) == len(single_sources(split, source)):
            tables[split] = join_tables(parts, source_names(source))
            with gathered.check():
                check_rows(spec, tables[split], use)
    gathered.raise_all()
    return JobPrompts(tables)


def sources_in_use(spec: RLHFJobSpec, use: DataUse) -> Mapping[Split, DataSource]:
    """Return the sources that a job reads."""
    evaluation = evaluation_source(spec.data) if use.evaluates else None
    sources = {
        Split.TRAIN: spec.data.train if use.trains else None,
        Split.PRETRAINING: spec.data.pretraining if use.trains else None,
        Split.EVALUATION: evaluation,
    }
    return {split: source for split, source in sources.items() if source is not None}


def load_table(
    spec: RLHFJobSpec,
    setting: SourceSetting,
    source: DataSource,
    tokenizer: TextTokenizer,
    use: DataUse,
    limit: BatchLimit = iter,
) -> PromptTable:
    """Read, check and tokenize the rows of a source.

    Args:
        spec: of the job.
        setting: the manifest's field of the source.
        source: of the rows, a single one.
        tokenizer: the policy's.
        use: of the data.
        limit: selects the first batches of rows. Default: all.

    Raises:
        DataError: a row or the file is unusable.
        SeveralErrors: several errors.
    """
    rollout = spec.rollout
    # Graphs always train on pretraining rows.
    trains_on_answers = {Split.TRAIN: use.trains_on_answers, Split.PRETRAINING: True}
    policy = RowLimits(
        rollout.max_prompt_tokens,
        rollout.max_response_tokens if trains_on_answers.get(setting.split) else None,
        spec.data.on_invalid_row,
        spec.data.on_long_prompt,
        rollout.max_prompt_tokens + rollout.max_response_tokens,
    )
    if policy.max_answer_tokens is not None:
        source = _with_answers(source)
    require_columns_of_path(source, setting)
    # Rows are read lazily, while the table is built: a file may be larger than memory.
    names = RowNames()
    # Closed here, since an error that is kept also keeps the rows.
    with closing(read_rows(source, setting, spec.schedule.seed, names)) as rows:
        return build_prompt_table(
            *(rows, source, setting, tokenizer, policy, limit, names),
            environment=use.environment,
        )


def _with_answers(source: DataSource) -> DataSource:
    """Name the column of answers that rows must have: some generators make rows without them."""
    if source.reasoning_gym is None or source.answer_field is not None:
        return source
    if preference_fields(source) is not None:
        return source
    return source.model_copy(update={"answer_field": DEFAULT_ANSWER_FIELD})


def check_rows(spec: RLHFJobSpec, table: PromptTable, use: DataUse) -> None:
    """Check that a source has enough rows for a step, with answers where they are needed.

    Args:
        spec: of the job.
        table: of all rows of a source.
        use: of the data.

    Raises:
        DatasetTooSmall: fewer than a step or the warm start takes.
        SourceUnused: one of several sources has no share of a step.
        MissingAnswer: a warm start over rows without reference answers.
        SeveralErrors: several of these.
    """
    gathered = ErrorCollector()
    for count, setting, batches in _rows_needed(spec, table.split, use):
        with gathered.check():
            if table.split is Split.TRAIN and table.sources:
                _check_shares(spec.data.train, table, count * batches, setting)
            else:
                table.require_rows(count, setting, batches)
    if table.split is Split.TRAIN and spec.schedule.warm_start is not None:
        with gathered.check():
            table.require_answers()
    gathered.raise_all()


def _check_shares(data: TrainingData, table: PromptTable, count: int, setting: str) -> None:
    """Check that each source has a share of a step, and enough rows for it.

    Raises:
        SourceUnused: one has no share.
        DatasetTooSmall: one has fewer rows.
        SeveralErrors: several of these.
    """
    largest = Mixture(data.weights, count).largest.tolist()
    errors = list[DataError]()
    for index, (name, size, share) in enumerate(
        zip(table.sources, table.sizes, largest, strict=True)
    ):
        source = SourceSetting(Split.TRAIN, index)
        if share == 0:
            error: DataError = SourceUnused(
                f"{source} ({name}) would never be trained on: got weight {data.weights[index]} of "
                f"{sum(data.weights)}, allowed at least one prompt in {MAX_PERIOD:,} steps of "
                f"{setting} = {count}; raise its weight, lower those of others, or remove it"
            )
        elif size < share:
            error = DatasetTooSmall(
                f"{source} ({name}) has fewer rows than a step takes of it: got {size} usable "
                f"rows, allowed at least {share}, its share of {setting} = {count}; add rows, "
                f"lower its weight, or lower {setting}"
            )
        else:
            continue
        errors.append(error.at(*source.location("weight")))
    raise_together(errors)


def rows_needed(spec: RLHFJobSpec, split: Split, use: DataUse) -> int:
    """Return the number of different rows that a source must have.

    Args:
        spec: of the job.
        split: the source's role in the job.
        use: of the data.
    """
    return max((count * batches for count, _, batches in _rows_needed(spec, split, use)), default=1)


def _rows_needed(spec: RLHFJobSpec, split: Split, use: DataUse) -> Iterable[tuple[int, str, int]]:
    """Yield rows per batch, the setting of that number, and batches per step."""
    schedule = spec.schedule
    if split is Split.TRAIN:
        yield schedule.prompts_per_step, "schedule.promptsPerStep", use.batches_per_step
        if schedule.warm_start is not None:
            yield schedule.warm_start.prompts_per_step, "schedule.warmStart.promptsPerStep", 1
    if split is Split.PRETRAINING and (count := spec.pretraining_rows_per_step) is not None:
        assert spec.data.pretraining is not None
        is_set = spec.data.pretraining.rows_per_step is not None
        setting = "data.pretraining.rowsPerStep" if is_set else "schedule.promptsPerStep"
        yield count, setting, 1


def source_names(source: DataSource) -> tuple[str, ...]:
    """Return the names of several sources; empty for a single one."""
    return source.source_names if isinstance(source, MixedData) else ()


def evaluation_source(data: DataSpec) -> EvaluationData | None:
    """Return the source of evaluation prompts: the manifest's, or the builtin task's own."""
    if data.evaluation is None and data.train.builtin is not None:
        return EvaluationData(builtin=data.train.builtin)
    return data.evaluation
