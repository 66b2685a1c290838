"""Checks the rows of a job: reads and tokenizes them as the data host does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rlhf_api.spec.job import RLHFJobSpec
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
from rlhf_runtime.preflight.environments import check_dialogues
from rlhf_runtime.preflight.findings import MAX_UNSTREAMED_BYTES, Findings, RowLimit
from rlhf_runtime.preflight.reward_rows import check_reward_rows
from rlhf_runtime.preflight.row_facts import describe_first_row, describe_rows, repeated_tokens
from rlhf_runtime.preflight.tokenizer import check_tokenizer
from rlhf_runtime.preflight.trial_rows import TrialRow, trial_rows


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
    tokenizer = _checked_tokenizer(spec, policy, findings)
    if tokenizer is None:
        with findings.about("spec", "data"):
            find_sources(spec.data)
        findings.unchecked.append("rows of the data: there is no tokenizer to read them with")
        return []
    if use.environment is not None and not check_dialogues(
        spec, tokenizer, use.environment, findings
    ):
        # One mistake is reported once: prompts could not be rendered with these tools.
        use = replace(use, environment=None)
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
                if table is None:
                    continue
                texts.setdefault(split, []).extend(_compared_texts(part, table, use))
                if _is_scored(split, spec, use):
                    names = source_names(source)
                    rows = trial_rows(table, setting, part, names, use.environment)
                    scored.setdefault(split, []).extend(rows)
                if is_whole:
                    checked.append(table)
        if len(checked) == len(parts):  # all rows are there to be counted
            with findings.about("spec", "data", split.value):
                check_rows(spec, join_tables(checked, source_names(source)), use)
    findings.warnings += _overlap(texts)
    return scored.get(Split.TRAIN) or scored.get(Split.EVALUATION, [])


def _checked_tokenizer(
    spec: RLHFJobSpec, policy: Path | None, findings: Findings
) -> TextTokenizer | None:
    """Return the policy's tokenizer; None if it is unusable or not available."""
    if policy is None:
        return None
    with findings.about("spec", "models"):
        tokenizer = TextTokenizer(policy, spec.rollout.end_tokens)
        check_tokenizer(tokenizer, findings)
        return tokenizer
    return None


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
        findings.facts.append(describe_rows(table, setting, source, spec.rollout))
        if source.builtin is None:
            findings.facts.extend(describe_first_row(table, setting, tokenizer, use))
            findings.warnings += repeated_tokens(table, setting, tokenizer, use)
        if _is_scored(setting.split, spec, use):
            check_reward_rows(spec, table, setting, findings)
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


def _compared_texts(source: DataSource, table: PromptTable, use: DataUse) -> Sequence[str]:
    """Texts that are not to be both in the training and in the evaluation data."""
    if source.builtin is not None:
        return []
    # An environment makes different tasks of rows with one prompt.
    return table.texts if use.environment is None else table.records


def _overlap(texts: Mapping[Split, Sequence[str]]) -> list[str]:
    """A warning if prompts of the evaluation are also trained on.

    texts: of prompts, or complete rows as JSON.
    """
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
