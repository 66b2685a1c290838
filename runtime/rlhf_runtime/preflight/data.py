"""Checks the rows of a job: reads and tokenizes them as the data host does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path

import numpy as np

from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.rewards import FunctionReward
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime import reasoning_gym_datasets
from rlhf_runtime.data.errors import EmptyDataset
from rlhf_runtime.data.files import has_large_first_row
from rlhf_runtime.data.load import (
    DataUse,
    check_rows,
    load_table,
    rows_needed,
    source_names,
    sources_in_use,
)
from rlhf_runtime.data.prompt_table import PromptTable, join_tables
from rlhf_runtime.data.retokenizer import retokenizers
from rlhf_runtime.data.rows import (
    CHUNK_ROWS,
    find_folder,
    find_sources,
    setting_paths,
    single_sources,
)
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Array, Column
from rlhf_runtime.models.errors import ModelIncomplete
from rlhf_runtime.models.vocabulary import num_embedding_rows
from rlhf_runtime.preflight.findings import MAX_UNSTREAMED_BYTES, Findings, RowLimit
from rlhf_runtime.preflight.trial_rows import TrialRow, trial_rows
from rlhf_runtime.rewards import exact_match, math
from rlhf_runtime.rewards.errors import InvalidReward
from rlhf_runtime.row_values import answer_texts, field_value

# Share of a model's vocabulary that a tokenizer may leave unused. Padding takes some percent.
MAX_UNUSED_ROWS = 0.1


def check_data(
    spec: RLHFJobSpec,
    use: DataUse,
    policy: Path | None,
    seconds: float | None,
    findings: Findings,
    one_machine: bool = True,
) -> Sequence[TrialRow]:
    """Check the rows of local files and builtin tasks.

    Args:
        spec: of the job.
        use: of its data.
        policy: the folder of the policy's model, with its tokenizer. None: not available; then only
            the existence of files is checked.
        seconds: time limit per source; workers check later rows. None: no limit.
        findings: collects errors, and facts such as the longest prompts.
        one_machine: True if workers have this machine's packages.

    Returns:
        Some rows whose responses are scored: of the training data, else of the evaluation's.
    """
    tokenizer = None
    if policy is not None:
        with findings.about("spec", "models"):
            tokenizer = TextTokenizer(policy)
            findings.warnings += _foreign_tokenizer(tokenizer)
            if tokenizer.template_end is not None:
                findings.facts.append(_template_end(tokenizer, tokenizer.template_end))
    if tokenizer is None:
        with findings.about("spec", "data"):
            find_sources(spec.data)
        findings.unchecked.append("rows of the data: there is no tokenizer to read them with")
        return []
    texts: dict[Split, list[str]] = {}
    scored: dict[Split, list[TrialRow]] = {}
    for split, source in sources_in_use(spec, use).items():
        parts = single_sources(split, source)
        checked: list[PromptTable] = []
        for setting, part in parts:
            with findings.about(*setting.location()):
                if reason := _reason_unchecked(setting, part, seconds, one_machine):
                    findings.unchecked.append(f"{setting}: {reason}")
                    continue
                table, is_whole = _check_source(
                    spec, setting, part, use, tokenizer, seconds, findings
                )
                if part.builtin is None and table is not None:
                    texts.setdefault(split, []).extend(table.texts)
                if table is not None and _is_scored(split, spec, use):
                    rows = trial_rows(table, setting, part, source_names(source))
                    scored.setdefault(split, []).extend(rows)
                if is_whole and table is not None:
                    checked.append(table)
        if len(checked) == len(parts):  # all rows are there to be counted
            with findings.about("spec", "data", split.value):
                check_rows(spec, join_tables(checked, source_names(source)), use)
    findings.warnings += _overlap(texts)
    return scored.get(Split.TRAIN) or scored.get(Split.EVALUATION, [])


def _foreign_tokenizer(tokenizer: TextTokenizer) -> Iterator[str]:
    """Warn of a tokenizer that seems to belong to another model."""
    # Responses would end in the middle, and nothing would fail.
    for token in tokenizer.ordinary_end_tokens:
        yield (
            f"a response ends at an ordinary word, too: got {tokenizer.text_of([token])!r}, as "
            f"token {token} of {tokenizer.folder} is in its tokenizer, and its config.json or "
            "generation_config.json names it as an end; check that the tokenizer belongs to the "
            "model"
        )
    if missing := tokenizer.missing_end_tokens:
        yield (
            "the model's files name an end token that its tokenizer does not have: got "
            f"{', '.join(map(str, missing))} in config.json or generation_config.json of "
            f"{tokenizer.folder}, with a tokenizer of {tokenizer.num_tokens:,} tokens; check that "
            "the tokenizer belongs to the model"
        )
    try:
        rows = num_embedding_rows(tokenizer.folder)
    except ModelIncomplete:  # an error of another check
        return
    unused = rows - tokenizer.num_tokens
    if unused > MAX_UNUSED_ROWS * rows:
        yield (
            f"{unused / rows:.0%} of the model's vocabulary has no token: got vocab_size {rows:,} "
            f"for {tokenizer.num_tokens:,} tokens in {tokenizer.folder}; check that the tokenizer "
            "belongs to the model"
        )


def _template_end(tokenizer: TextTokenizer, token: int) -> str:
    """Describe an end token that only the chat template has."""
    return (
        f"a response ends with {tokenizer.text_of([token])!r}, too: the chat template of "
        f"{tokenizer.folder} writes this token, {token}, behind answers, and no file lists it as "
        "an end token"
    )


def _check_source(
    spec: RLHFJobSpec,
    setting: SourceSetting,
    source: DataSource,
    use: DataUse,
    tokenizer: TextTokenizer,
    seconds: float | None,
    findings: Findings,
) -> tuple[PromptTable | None, bool]:
    """Check the rows of one source; for arguments see `check_data`.

    Returns:
        The rows, None if the time limit ended before a usable one; and True if these are all.

    Raises:
        DataError: an error in the rows.
        SeveralErrors: several errors.
    """
    limit = RowLimit(seconds, _enough(spec, setting.split, source, use, seconds))
    try:
        table = load_table(spec, setting, source, tokenizer, use, limit)
        findings.facts.append(_described(table, setting, source, spec.rollout.max_prompt_tokens))
        if source.builtin is None:
            findings.facts.extend(_first_row(table, setting, tokenizer, use))
            findings.warnings += _repeated_tokens(table, setting, tokenizer, use)
        if _is_scored(setting.split, spec, use):
            check_fields(spec, table, setting, findings)
        return table, not limit.is_late
    except EmptyDataset:
        if not limit.is_late:
            raise
        return None, False  # later rows may be valid
    finally:
        if limit.is_late:
            # Also after an error, which concerns only the rows before the limit.
            text = f"{setting}: the rows after the first {limit.num_read:,}"
            findings.unchecked.append(text)


def _overlap(texts: Mapping[Split, Sequence[str]]) -> list[str]:
    """A warning if prompts of the evaluation are also trained on."""
    if not texts.keys() >= {Split.TRAIN, Split.EVALUATION}:
        return []
    trained, evaluated = set(texts[Split.TRAIN]), texts[Split.EVALUATION]
    shared = sum(text in trained for text in evaluated)
    if not shared:
        return []
    return [
        f"{shared:,} of {len(evaluated):,} prompts of data.evaluation are also in data.train: the "
        "evaluation measures what was learned by heart; take other rows for one of them"
    ]


def _is_scored(split: Split, spec: RLHFJobSpec, use: DataUse) -> bool:
    """True if responses to a source's prompts are generated and scored."""
    if split is Split.TRAIN:
        return use.scores_training and spec.data.train.preferences is None
    return split is Split.EVALUATION


def _reason_unchecked(
    setting: SourceSetting, source: DataSource, seconds: float | None, one_machine: bool
) -> str:
    """The reason to leave a source to workers; empty: check it here.

    Raises:
        DataNotFound, DataUnreadable: its file is missing or not readable.
    """
    if source.hugging_face is not None:
        return f"workers load {source.hugging_face} when they start"
    if source.reasoning_gym is not None:
        if one_machine or reasoning_gym_datasets.is_installed():
            return ""
        return (
            f"workers make rows of {source.reasoning_gym.dataset} when they start: the package "
            f"{reasoning_gym_datasets.PACKAGE} is not on this machine"
        )
    if seconds is None:
        return ""
    for field, path in setting_paths(source, setting).items():
        if find_folder(path, field, source, setting) is None and has_large_first_row(
            path, field, MAX_UNSTREAMED_BYTES
        ):
            return (
                f"workers read {path} when they start: its first row comes after more than "
                f"{MAX_UNSTREAMED_BYTES >> 20} MiB, as in a list (write a row in each line)"
            )
    return ""


def check_reward_tokenizers(
    spec: RLHFJobSpec, folders: Mapping[str, Path], findings: Findings
) -> None:
    """Check that the tokenizers of reward models can format the prompts.

    Args:
        spec: of the job.
        folders: of models, by role.
        findings: collects errors.
    """
    for role in [name for name in spec.reward_models if name in folders]:
        with findings.about("spec", *spec.manifest_models[role].location, "source"):
            retokenizers(spec, role, folders[role])


def _enough(
    spec: RLHFJobSpec, split: Split, source: DataSource, use: DataUse, seconds: float | None
) -> int | None:
    """Number of rows to check. None: all."""
    # The rows of a builtin task are all alike: as many as a run needs are enough.
    if source.builtin is None or seconds is None:
        return None
    return max(CHUNK_ROWS, rows_needed(spec, split, use))


def _described(table: PromptTable, setting: SourceSetting, source: DataSource, limit: int) -> str:
    """Number of rows, number and cause of skipped rows, and the longest prompt, in words."""
    origin = f" of {source.path}" if source.path is not None else ""
    if source.paths is not None:
        origin = f" of {len(source.paths)} paths"
    row, tokens = table.longest_prompt()
    left_out = [
        f"{count:,} {cause}"
        for count, cause in (
            (table.rows_invalid, "that cannot be used (data.onInvalidRow: Skip)"),
            (table.rows_too_long, "whose prompt is too long (data.onLongPrompt: Skip)"),
        )
        if count
    ]
    without = f", without {' and '.join(left_out)}" if left_out else ""
    return (
        f"{setting}: {len(table):,} rows{origin}{without}; the longest prompt is "
        f"{table.row_names.name(row)} with {tokens:,} tokens (rollout.maxPromptTokens = {limit:,})"
    )


def _is_trained(table: PromptTable, use: DataUse) -> bool:
    """True if the answers of a source are trained on."""
    return use.trains_on_answers and table.split is not Split.EVALUATION


def _repeated_tokens(
    table: PromptTable, setting: SourceSetting, tokenizer: TextTokenizer, use: DataUse
) -> Iterator[str]:
    """Warn of texts that have the special token that is added to them."""
    begin, ends = tokenizer.begin_token_id, tokenizer.end_token_ids
    count = sum(len(run) > 1 and run[0] == run[1] == begin for run in table.prompts.runs())
    if begin is not None and count:
        yield (
            f"{setting}: {count:,} of {len(table):,} prompts begin with two begin tokens "
            f"({tokenizer.text_of([begin])!r}): remove its text from the data or from the chat "
            "template"
        )
    answers = [table.answers] if _is_trained(table, use) else []
    for column in [*answers, *([] if table.rejected is None else [table.rejected])]:
        count = sum(len(run) > 1 and run[-1] in ends and run[-2] in ends for run in column.runs())
        if count:
            title = "rejected answers" if column is table.rejected else "answers"
            yield (
                f"{setting}: {count:,} of {len(table):,} {title} end with two end tokens: remove "
                "the end token's text from the data"
            )


# Tokens of a prompt whose ids a fact shows, of its beginning and of its end.
SHOWN_TOKENS = 12
# Characters of a text that a fact shows, of its beginning and of its end.
SHOWN_CHARACTERS = 200


def _first_row(
    table: PromptTable, setting: SourceSetting, tokenizer: TextTokenizer, use: DataUse
) -> Iterator[str]:
    """Describe the first row as the model reads it: chat templates and end tokens are visible."""
    row = f"{setting}: {table.row_name(0)}"
    if any(table.texts[:1]):
        tokens = _first(table.prompts)
        yield f"{row}, prompt, {len(tokens):,} tokens: {_shown(tokens, tokenizer)}"
        yield f"{row}, prompt, ids of tokens: {_shown_ids(tokens)}"
    if _is_trained(table, use) or table.rejected is not None:
        yield f"{row}, trained {_response(table.answers, table.answers_mask, tokenizer)}"
    if table.rejected is not None:
        yield f"{row}, rejected {_response(table.rejected, table.rejected_mask, tokenizer)}"


def _response(column: Column, masks: Column | None, tokenizer: TextTokenizer) -> str:
    """Describe a column's first response: its trained tokens, and those between answers."""
    tokens = _first(column)
    if masks is None:
        return f"answer, {len(tokens):,} tokens: {_shown(tokens, tokenizer)}"
    mask = _first(masks)
    cuts = np.flatnonzero(np.diff(mask)) + 1
    parts = [
        _shown(part, tokenizer) if is_answer[0] else f"[context: {_shown(part, tokenizer)}]"
        for part, is_answer in zip(np.split(tokens, cuts), np.split(mask, cuts), strict=True)
    ]
    return f"answers, {int(mask.sum()):,} of {len(tokens):,} tokens: {_shortened(' '.join(parts))}"


def _first(column: Column) -> Array:
    (run,) = column.take(np.arange(1)).runs()
    return run


def _shown(tokens: Array, tokenizer: TextTokenizer) -> str:
    return repr(_shortened(tokenizer.text_of(tokens.tolist())))


def _shown_ids(tokens: Array) -> str:
    ids = [str(token) for token in tokens.tolist()]
    if len(ids) > 2 * SHOWN_TOKENS:
        ids = [*ids[:SHOWN_TOKENS], "...", *ids[-SHOWN_TOKENS:]]
    return " ".join(ids)


def _shortened(text: str) -> str:
    if len(text) <= 2 * SHOWN_CHARACTERS:
        return text
    return f"{text[:SHOWN_CHARACTERS]} ... {text[-SHOWN_CHARACTERS:]}"


# Built-in verifiers that read a field of the row, with its default name. The fields that a user's
# verifier reads are unknown before it is called.
READERS = {
    f"{exact_match.__name__}:score": "answer",
    f"{math.__name__}:verify": "answer",
    reasoning_gym_datasets.VERIFIER: reasoning_gym_datasets.DATASET_FIELD,
}


def check_fields(
    spec: RLHFJobSpec, table: PromptTable, setting: SourceSetting, findings: Findings
) -> None:
    """Check the answers that built-in verifiers read in the rows of a source.

    Args:
        spec: of the job.
        table: of the source.
        setting: the manifest's field of the source.
        findings: collects errors, and warnings of rows that are not scored.
    """
    if not table.records:
        return
    for number, reward in enumerate(spec.rewards):
        function = reward.function
        if function is None or function.entrypoint not in READERS:
            continue
        with findings.about("spec", "rewards", number, "function"):
            findings.warnings += _check_answers(function, table, setting)


def _check_answers(
    function: FunctionReward, table: PromptTable, source: SourceSetting
) -> list[str]:
    """Check the answers that one verifier reads.

    Returns:
        A warning if it can use the answers of some rows only.

    Raises:
        InvalidReward: it can use no answer of the source.
    """
    field = str(function.parameters.get("field", READERS[function.entrypoint]))
    first, num_missing = json.loads(table.records[0]), 0
    problems: list[str] = []
    for index, text in enumerate(table.records):
        try:
            answer_texts(field_value(json.loads(text), field))
        except KeyError:
            num_missing += 1
            problems.append(f"{table.row_name(index)}: no {field}")
        except ValueError as error:
            problems.append(f"{table.row_name(index)}: {error}")
    if num_missing == len(table):
        near = get_close_matches(field, list(first), n=1)
        raise InvalidReward(
            f"{function.entrypoint} reads a field that rows of {source} do not have: got {field}, "
            f"allowed {', '.join(first)}; "
            + (f"did you mean {near[0]}? " if near else "")
            + _other_field(function)
        )
    if len(problems) == len(table):
        raise InvalidReward(
            f"{function.entrypoint} cannot use {field} in any row of {source}: got {problems[0]}"
        )
    if not problems:
        return []
    return [
        f"{function.entrypoint} cannot score {len(problems):,} of {len(table):,} rows of {source}, "
        f"for their {field}: got {problems[0]}"
    ]


def _other_field(function: FunctionReward) -> str:
    """What to do about a verifier whose field no row has."""
    if function.entrypoint == reasoning_gym_datasets.VERIFIER:
        return "take rows of reasoningGym, or another verifier"
    return "write parameters: {field: NAME}, or add it to the data"
