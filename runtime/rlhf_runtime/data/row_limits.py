"""Limits of rows, and the errors of rows beyond them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlhf_api.error_collector import raise_together
from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt
from rlhf_api.spec.row_sources import DataSource, TrainOn
from rlhf_runtime.data.errors import DataError, EmptyDataset, InvalidRow, PromptTooLong
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.rows import preference_fields, text_field, trained_answers
from rlhf_runtime.data.source_setting import SourceSetting

# Maximum of rows that a message names; of the others it gives the number.
MAX_NAMED_ROWS = 5


@dataclass(frozen=True, slots=True)
class RowLimits:
    """Limits of rows, and whether a row beyond them is skipped or an error."""

    max_prompt_tokens: int
    max_answer_tokens: int | None
    """None: answers may have any length, because no graph trains on them."""
    on_invalid_row: OnInvalidRow
    on_long_prompt: OnLongPrompt
    max_text_tokens: int
    """Length at which pretraining texts are truncated."""


@dataclass(frozen=True, slots=True)
class RowCounts:
    """Rows of a source that were read, by what became of them."""

    num_read: int
    num_usable: int
    invalid: Sequence[tuple[int, str]]
    """Number and problem of each unusable row."""
    too_long: Sequence[tuple[int, int]]
    """Number and tokens of each prompt over the limit."""


def raise_row_errors(
    counts: RowCounts,
    source: DataSource,
    setting: SourceSetting,
    limits: RowLimits,
    names: RowNames,
) -> None:
    """Raise all errors of a source's rows together.

    Raises:
        InvalidRow: unusable rows, with onInvalidRow: Fail.
        PromptTooLong: prompts over the limit, with onLongPrompt: Fail.
        EmptyDataset: no usable row.
        SeveralErrors: several of these.
    """
    title, errors = f"{setting}{_file_name(source)}", list[DataError]()
    if counts.invalid and limits.on_invalid_row is OnInvalidRow.FAIL:
        reasons = _by_reason(counts.invalid, names)
        # A reason that all rows share is seldom in the rows.
        is_general = len(reasons) == 1 and len(counts.invalid) == counts.num_read > 1
        do = (
            "change the template, the settings of data or the rows: all have this problem"
            if is_general
            else "correct the rows or set data.onInvalidRow: Skip"
        )
        errors.append(
            InvalidRow(
                f"{title} has {len(counts.invalid)} rows that cannot be used (rows count from "
                f"0): got {_first_few(reasons)}; allowed {_allowed(source, limits)}; {do}"
            )
        )
    if counts.too_long and limits.on_long_prompt is OnLongPrompt.FAIL:
        named = _first_few(f"{names.name(row)} with {size} tokens" for row, size in counts.too_long)
        row, num_tokens = max(counts.too_long, key=lambda long: long[1])
        longest = (
            f", the longest {names.name(row)} with {num_tokens}" if len(counts.too_long) > 1 else ""
        )
        errors.append(
            PromptTooLong(
                f"{title} has {len(counts.too_long)} prompts over the limit (rows count from "
                f"0): got {named}{longest}; allowed rollout.maxPromptTokens = "
                f"{limits.max_prompt_tokens}; raise it ({num_tokens} takes all), shorten the "
                "prompts or set data.onLongPrompt: Skip"
            ).at("spec", "rollout", "maxPromptTokens")
        )
    if not counts.num_usable and not errors:
        errors.append(
            EmptyDataset(
                f"{title} has no usable rows: got {counts.num_read} rows, "
                f"{len(counts.invalid)} of them invalid and {len(counts.too_long)} too long; "
                "add rows"
            )
        )
    raise_together(errors)


def _by_reason(invalid: Sequence[tuple[int, str]], names: RowNames) -> list[str]:
    """Describe unusable rows; rows with the same problem together."""
    rows_by_reason: dict[str, list[int]] = {}
    for row, why in invalid:
        rows_by_reason.setdefault(why, []).append(row)
    return [
        f"{names.names(rows[:MAX_NAMED_ROWS])}{_and_more(rows)}: {why}"
        for why, rows in rows_by_reason.items()
    ]


def _file_name(source: DataSource) -> str:
    return "" if source.path is None else f" ({source.path})"


def _allowed(source: DataSource, limits: RowLimits) -> str:
    """Describe a valid row."""
    if (texts := text_field(source)) is not None:
        return f"in {texts} a text, not empty"
    max_tokens = limits.max_answer_tokens
    limit = ""
    if max_tokens is not None:
        limit = f" of at most rollout.maxResponseTokens = {max_tokens} tokens"
        if trained_answers(source) is TrainOn.ALL_ANSWERS:
            limit += ", together with the messages between them"
    preferences = preference_fields(source)
    if preferences is not None:
        return (
            f"in {preferences.chosen_field} and {preferences.rejected_field} two different answers"
            f"{limit}, as texts or lists of messages, none empty"
        )
    answer = f", answers{limit}" if limit else ""
    return f"in {source.prompt_field} a text or a list of messages, not empty{answer}"


def _first_few(rows: Iterable[str]) -> str:
    """List the first few rows, and the number of all others."""
    names = list(rows)
    return ", ".join(names[:MAX_NAMED_ROWS]) + _and_more(names)


def _and_more(rows: Sequence[object]) -> str:
    """Name the number of rows beyond those that a message names."""
    num_more = len(rows) - MAX_NAMED_ROWS
    return f" and {num_more} more" if num_more > 0 else ""
