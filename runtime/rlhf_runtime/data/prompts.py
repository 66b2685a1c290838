"""Rows of a source to a PromptTable: checks, chat template, token ids, limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

from rlhf_api.spec.data import DataSource, OnInvalidRow, OnLongPrompt
from rlhf_runtime.data.errors import EmptyDataset, InvalidRow, MissingField, PromptTooLong
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.row_text import PromptWriter, RowProblem, answer_text, record_json
from rlhf_runtime.data.rows import Row, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, concatenate, pack

CHUNK_ROWS = 1024
NAMED_ROWS = 5
"""So many rows are named in a message; of the others it gives the number."""


@dataclass(frozen=True, slots=True)
class PromptPolicy:
    """Which rows are refused, and whether a refusal ends the job."""

    max_prompt_tokens: int
    on_invalid_row: OnInvalidRow
    on_long_prompt: OnLongPrompt


class _Candidate(NamedTuple):
    """A row whose contents are fine and whose length is not known yet."""

    source_row: int
    text: str
    record: str
    answer: str | None


@dataclass(slots=True)
class _Collected:
    """What has been read so far."""

    rows_read: int = 0
    rows: list[_Candidate] = field(default_factory=list)
    prompts: list[Column] = field(default_factory=list)
    answers: list[Column] = field(default_factory=list)
    invalid: list[tuple[int, str]] = field(default_factory=list)
    too_long: list[tuple[int, int]] = field(default_factory=list)


def build_prompt_table(
    rows: Iterable[Row],
    source: DataSource,
    split: Split,
    tokenizer: TextTokenizer,
    policy: PromptPolicy,
) -> PromptTable:
    """Check, write and tokenize the prompts of a source.

    Raises:
        EmptyDataset: no rows, or none left after skipping.
        MissingField: no row has the column that promptField or answerField names.
        InvalidRow: a row without usable prompt, or with a number that is not finite, and
            onInvalidRow is fail.
        PromptTooLong: a prompt over the limit, and onLongPrompt is fail.
        ChatTemplateUnusable: a template is needed and there is none.
    """
    writer = PromptWriter(source, split, tokenizer.chat_template)
    collected = _Collected()
    for chunk in _chunks(rows):
        _require_fields(chunk, source, split)
        candidates = _usable(chunk, source, writer, collected)
        _tokenize(candidates, writer, tokenizer, policy.max_prompt_tokens, collected)
        collected.rows_read += len(chunk)
    _refuse(collected, source, split, policy)
    return PromptTable(
        split=split,
        prompts=concatenate(collected.prompts),
        texts=tuple(row.text for row in collected.rows),
        records=tuple(row.record for row in collected.rows),
        answers=concatenate(collected.answers),
        source_rows=np.asarray([row.source_row for row in collected.rows], dtype=np.int64),
        rows_read=collected.rows_read,
        rows_invalid=len(collected.invalid),
        rows_too_long=len(collected.too_long),
    )


def _chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while chunk := list(islice(iterator, CHUNK_ROWS)):
        yield chunk


def _require_fields(chunk: list[Row], source: DataSource, split: Split) -> None:
    """Refuse a column that is nowhere in a chunk: the manifest names the wrong one."""
    for setting, name in (
        ("promptField", source.prompt_field),
        ("answerField", source.answer_field),
    ):
        if name is not None and not any(name in row for row in chunk):
            columns = ", ".join(dict.fromkeys(column for row in chunk for column in row)) or "none"
            raise MissingField(
                f"data.{split.value}.{setting} names a column that does not exist: got {name}, "
                f"allowed {columns}; correct data.{split.value}.{setting}"
            )


def _usable(
    chunk: list[Row], source: DataSource, writer: PromptWriter, collected: _Collected
) -> list[_Candidate]:
    candidates = []
    for source_row, row in enumerate(chunk, start=collected.rows_read):
        try:
            text = writer.write(row)
            answer = answer_text(row, source.answer_field)
            candidates.append(_Candidate(source_row, text, record_json(row), answer))
        except RowProblem as problem:
            collected.invalid.append((source_row, str(problem)))
    return candidates


def _tokenize(
    candidates: list[_Candidate],
    writer: PromptWriter,
    tokenizer: TextTokenizer,
    max_prompt_tokens: int,
    collected: _Collected,
) -> None:
    prompts = tokenizer.encode(
        [row.text for row in candidates], add_special_tokens=not writer.is_templated
    )
    assert prompts.lengths is not None
    kept = []
    for index, (row, length) in enumerate(zip(candidates, prompts.lengths.tolist(), strict=True)):
        if length == 0:
            collected.invalid.append((row.source_row, "the tokenizer makes no token of its prompt"))
        elif length > max_prompt_tokens:
            collected.too_long.append((row.source_row, length))
        else:
            kept.append(index)
    rows = [candidates[index] for index in kept]
    collected.rows.extend(rows)
    collected.prompts.append(prompts.take(np.asarray(kept, dtype=np.int64)))
    collected.answers.append(_answers(rows, tokenizer))


def _answers(rows: list[_Candidate], tokenizer: TextTokenizer) -> Column:
    """Token ids of the answers, closed with the end token; nothing where there is no answer."""
    encoded = tokenizer.encode([row.answer or "" for row in rows], add_special_tokens=False)
    end = np.asarray([tokenizer.eos_token_id], dtype=np.int32)
    runs = [
        np.concatenate([run, end]) if row.answer is not None else run
        for row, run in zip(rows, encoded.runs(), strict=True)
    ]
    return pack(runs, np.int32)


def _refuse(collected: _Collected, source: DataSource, split: Split, policy: PromptPolicy) -> None:
    """Raise for what the policy does not let pass."""
    if collected.invalid and policy.on_invalid_row is OnInvalidRow.FAIL:
        named = _named(f"row {row}: {why}" for row, why in collected.invalid)
        raise InvalidRow(
            f"data.{split.value} has {len(collected.invalid)} rows that cannot be used (rows count "
            f"from 0): got {named}; allowed in {source.prompt_field} a text or a list of messages, "
            "not empty, and finite numbers everywhere; correct the rows or set data.onInvalidRow: "
            "Skip"
        )
    if collected.too_long and policy.on_long_prompt is OnLongPrompt.FAIL:
        named = _named(f"row {row} with {size} tokens" for row, size in collected.too_long)
        raise PromptTooLong(
            f"data.{split.value} has {len(collected.too_long)} prompts over the limit (rows count "
            f"from 0): got {named}; allowed rollout.maxPromptTokens = "
            f"{policy.max_prompt_tokens}; raise it, shorten the prompts or set data.onLongPrompt: "
            "Skip"
        )
    if not collected.rows:
        raise EmptyDataset(
            f"data.{split.value} has no usable rows: got {collected.rows_read} rows, "
            f"{len(collected.invalid)} of them invalid and {len(collected.too_long)} too long; "
            "add rows"
        )


def _named(places: Iterable[str]) -> str:
    """The first few places, and how many more there are."""
    every = list(places)
    rest = len(every) - NAMED_ROWS
    return ", ".join(every[:NAMED_ROWS]) + (f" and {rest} more" if rest > 0 else "")
