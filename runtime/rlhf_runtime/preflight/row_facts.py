"""Facts and warnings about the rows of a source: what the model reads, and what is trained on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_api.spec.rollout import RolloutSpec
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.load import DataUse
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Array, Column
from rlhf_runtime.telemetry.shortened_text import shorten

# Tokens of a prompt whose ids a fact shows, of its beginning and of its end.
SHOWN_TOKENS = 12
# Characters of a text that a fact shows.
SHOWN_CHARACTERS = 400


def describe_rows(
    table: PromptTable, setting: SourceSetting, source: DataSource, rollout: RolloutSpec
) -> str:
    """Describe the number of rows, number and cause of skipped rows, and the longest prompt."""
    limit = rollout.max_prompt_tokens
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


def repeated_tokens(
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


def describe_first_row(
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
    shown = shorten(" ".join(parts), SHOWN_CHARACTERS)
    return f"answers, {int(mask.sum()):,} of {len(tokens):,} tokens: {shown}"


def _first(column: Column) -> Array:
    (run,) = column.take(np.arange(1)).runs()
    return run


def _shown(tokens: Array, tokenizer: TextTokenizer) -> str:
    return repr(shorten(tokenizer.text_of(tokens.tolist()), SHOWN_CHARACTERS))


def _shown_ids(tokens: Array) -> str:
    ids = [str(token) for token in tokens.tolist()]
    if len(ids) > 2 * SHOWN_TOKENS:
        ids = [*ids[:SHOWN_TOKENS], "...", *ids[-SHOWN_TOKENS:]]
    return " ".join(ids)
