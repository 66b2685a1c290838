"""Builds a PromptTable from rows: checks, chat template, token ids, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.named_columns import require_columns
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.row_checks import RowProblem, checked_text
from rlhf_runtime.data.row_limits import RowCounts, RowLimits, raise_row_errors
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.row_text import (
    PromptWriter,
    parse_pair,
    prompt_and_answer,
    prompt_value,
    record_json,
)
from rlhf_runtime.data.rows import (
    CHUNK_ROWS,
    GENERATED_CHUNK_ROWS,
    preference_fields,
    row_batches,
    row_chunks,
    text_field,
)
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, concatenate, pack

BatchLimit = Callable[[Iterable[list[Row]]], Iterable[list[Row]]]
"""Selects the first of some batches, or all."""


class _Candidate(NamedTuple):
    """A row with valid contents, before its length is checked."""

    source_row: int
    text: str
    record: str
    answers: tuple[str, ...]
    """The reference answer, if there is one; of a pair both responses, the chosen one first."""
    closed: tuple[str, ...] = ()
    """The prompt with each answer as the chat template renders them, up to an end token. Empty
    without a template, or if no graph trains on answers."""


@dataclass(slots=True)
class _Collected:
    """Everything collected while rows are read."""

    answers: tuple[list[Column], ...]
    """Reference answers; for pairs the chosen responses, then the rejected ones."""
    rows_read: int = 0
    rows: list[_Candidate] = field(default_factory=list)
    prompts: list[Column] = field(default_factory=list)
    invalid: list[tuple[int, str]] = field(default_factory=list)
    too_long: list[tuple[int, int]] = field(default_factory=list)
    num_cut: int = 0


def build_prompt_table(
    rows: Iterable[Row],
    source: DataSource,
    setting: SourceSetting,
    tokenizer: TextTokenizer,
    row_limits: RowLimits,
    limit: BatchLimit = iter,
    names: RowNames | None = None,
) -> PromptTable:
    """Check, render and tokenize the prompts of a source, or its pretraining texts.

    limit: selects the first batches of rows. Default: all.
    names: of the rows in messages, complete when these have been read. Default: their numbers.

    Raises:
        EmptyDataset: no rows, or none left after skipping.
        MissingField: no row has the column that the manifest names for prompts, answers or texts.
        InvalidRow: a row without usable prompt or answers, or with a number that is not finite;
            with onInvalidRow: Fail.
        PromptTooLong: a prompt over the limit, with onLongPrompt: Fail.
        ChatTemplateUnusable: a template is needed, or has arguments, and there is none.
        SeveralErrors: several of these.
    """
    writer = PromptWriter(source, setting, tokenizer.chat_template)
    writer.require_template_for_arguments()
    collected = _Collected(answers=([],) if preference_fields(source) is None else ([], []))
    for batch in limit(_batches(rows, source, setting)):
        ends = tokenizer.end_texts() if row_limits.max_answer_tokens is not None else []
        candidates = _read_candidates(batch, source, writer, ends, collected)
        if text_field(source) is None:
            _tokenize(candidates, writer, tokenizer, row_limits, collected)
        else:
            _tokenize_texts(candidates, tokenizer, row_limits.max_text_tokens, collected)
        collected.rows_read += len(batch)
    names = names or RowNames()
    counts = RowCounts(
        collected.rows_read, len(collected.rows), collected.invalid, collected.too_long
    )
    raise_row_errors(counts, source, setting, row_limits, names)
    answers, *others = map(concatenate, collected.answers)
    return PromptTable(
        split=setting.split,
        prompts=concatenate(collected.prompts),
        texts=tuple(row.text for row in collected.rows),
        records=tuple(row.record for row in collected.rows),
        answers=answers,
        rejected=others[0] if others else None,
        source_rows=np.asarray([row.source_row for row in collected.rows], dtype=np.int64),
        rows_read=collected.rows_read,
        rows_invalid=len(collected.invalid),
        rows_too_long=len(collected.too_long),
        rows_cut=collected.num_cut,
        row_names=names,
    )


def _batches(
    rows: Iterable[Row], source: DataSource, setting: SourceSetting
) -> Iterator[list[Row]]:
    """Yield rows that are tokenized together, from chunks whose columns were checked."""
    size = CHUNK_ROWS if source.reasoning_gym is None else GENERATED_CHUNK_ROWS
    for chunk in row_chunks(rows, size):
        require_columns(chunk, source, setting)
        yield from row_batches(chunk)


def _read_candidates(
    batch: list[Row],
    source: DataSource,
    writer: PromptWriter,
    ends: Sequence[str],
    collected: _Collected,
) -> list[_Candidate]:
    candidates, texts = [], text_field(source)
    # Numbers count all rows of the source, so that messages fit its files.
    for source_row, row in enumerate(batch, start=collected.rows_read):
        try:
            if texts is not None:
                text = checked_text(prompt_value(row, texts), texts)
                # No verifier reads pretraining rows, so their record stays empty.
                candidates.append(_Candidate(source_row, text, "{}", ()))
                continue
            prompt, answers = _read(row, source)
            arguments = writer.arguments(row)
            text = writer.write(prompt, arguments)
            closed: tuple[str, ...] = ()
            if writer.is_templated and ends:
                closed = tuple(
                    writer.write_closed(prompt, answer, ends, arguments) for answer in answers
                )
            candidates.append(_Candidate(source_row, text, record_json(row), answers, closed))
        except RowProblem as problem:
            collected.invalid.append((source_row, str(problem)))
    return candidates


def _read(row: Row, source: DataSource) -> tuple[Any, tuple[str, ...]]:
    """Return a row's prompt and its answers."""
    preferences = preference_fields(source)
    if preferences is not None:
        pair = parse_pair(row, source.prompt_field, preferences)
        return pair.prompt, (pair.chosen, pair.rejected)
    prompt, answer = prompt_and_answer(row, source)
    return prompt, () if answer is None else (answer,)


def _tokenize(
    candidates: list[_Candidate],
    writer: PromptWriter,
    tokenizer: TextTokenizer,
    row_limits: RowLimits,
    collected: _Collected,
) -> None:
    # A chat template writes special tokens itself.
    prompts = tokenizer.encode(
        [row.text for row in candidates], add_special_tokens=not writer.is_templated
    )
    answers = [
        _answers(candidates, prompts, number, tokenizer) for number in range(len(collected.answers))
    ]
    sizes = [_lengths(column) for column in (prompts, *answers)]
    kept = []
    for index, (row, length, *answer_lengths) in enumerate(zip(candidates, *sizes, strict=True)):
        longest, limit = max(answer_lengths), row_limits.max_answer_tokens
        if length == 0:
            collected.invalid.append((row.source_row, "the tokenizer makes no token of its prompt"))
        elif length > row_limits.max_prompt_tokens:
            collected.too_long.append((row.source_row, length))
        elif limit is not None and longest > limit:
            why = f"an answer of {longest} tokens with the end token, over {limit}"
            collected.invalid.append((row.source_row, why))
        else:
            kept.append(index)
    kept_rows = np.asarray(kept, dtype=np.int64)
    collected.rows.extend(candidates[index] for index in kept)
    collected.prompts.append(prompts.take(kept_rows))
    for columns, column in zip(collected.answers, answers, strict=True):
        columns.append(column.take(kept_rows))


def _tokenize_texts(
    candidates: list[_Candidate], tokenizer: TextTokenizer, max_tokens: int, collected: _Collected
) -> None:
    """Tokenize pretraining texts, each with the end token.

    The first token is the prompt, all others are the answer.
    """
    encoded = tokenizer.encode([row.text for row in candidates], add_special_tokens=True)
    prompts, answers = [], []
    for row, run in zip(candidates, encoded.runs(), strict=True):
        if not len(run):
            collected.invalid.append((row.source_row, "the tokenizer makes no token of its text"))
            continue
        # The end token teaches the model where texts end.
        closed = np.append(run, np.int32(tokenizer.eos_token_id))
        collected.num_cut += len(closed) > max_tokens
        collected.rows.append(row)
        prompts.append(closed[:1])
        answers.append(closed[1:max_tokens])
    collected.prompts.append(pack(prompts, np.int32))
    collected.answers[0].append(pack(answers, np.int32))


def _answers(
    rows: list[_Candidate], prompts: Column, number: int, tokenizer: TextTokenizer
) -> Column:
    """Tokenize the answers at one position, each with an end token; nothing without an answer."""
    if any(row.closed for row in rows):
        return _conversation_answers(rows, prompts, number, tokenizer)
    texts = [row.answers[number] if number < len(row.answers) else None for row in rows]
    encoded = tokenizer.encode([text or "" for text in texts], add_special_tokens=False)
    end = np.asarray([tokenizer.eos_token_id], dtype=np.int32)
    runs = [
        np.concatenate([run, end]) if text is not None else run
        for text, run in zip(texts, encoded.runs(), strict=True)
    ]
    return pack(runs, np.int32)


def _conversation_answers(
    rows: list[_Candidate], prompts: Column, number: int, tokenizer: TextTokenizer
) -> Column:
    """Return the tokens behind the prompts, of conversations as the chat template renders them."""
    texts = [row.closed[number] if number < len(row.closed) else row.text for row in rows]
    conversations = tokenizer.encode(texts, add_special_tokens=False).runs()
    parts = [text[len(row.text) :] for row, text in zip(rows, texts, strict=True)]
    alone = tokenizer.encode(parts, add_special_tokens=False).runs()
    runs = []
    for prompt, conversation, answer in zip(prompts.runs(), conversations, alone, strict=True):
        # A token may begin in the prompt and end in the answer. Generation would never make it.
        continues = np.array_equal(conversation[: len(prompt)], prompt)
        run = conversation[len(prompt) :] if continues else answer
        if len(run) and run[-1] not in tokenizer.end_token_ids:
            run = np.append(run, np.int32(tokenizer.eos_token_id))
        runs.append(run)
    return pack(runs, np.int32)


def _lengths(column: Column) -> list[int]:
    assert column.lengths is not None
    lengths: list[int] = column.lengths.tolist()
    return lengths
