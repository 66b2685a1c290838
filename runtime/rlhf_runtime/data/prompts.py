"""Builds a PromptTable from rows: checks, chat template, token ids, limits."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from rlhf_api.spec.row_sources import DataSource, TrainOn
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.named_columns import require_columns
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.response_tokens import (
    ResponseTokens,
    tokenize_conversations,
    tokenize_plain_responses,
)
from rlhf_runtime.data.row_checks import RowProblem, checked_text
from rlhf_runtime.data.row_conversations import (
    WrittenConversation,
    check_plain_response,
    write_conversation,
)
from rlhf_runtime.data.row_limits import RowCounts, RowLimits, raise_row_errors
from rlhf_runtime.data.row_messages import Response
from rlhf_runtime.data.row_names import RowNames
from rlhf_runtime.data.row_responses import prompt_and_responses, prompt_value
from rlhf_runtime.data.row_text import PromptWriter, record_json
from rlhf_runtime.data.rows import (
    CHUNK_ROWS,
    GENERATED_CHUNK_ROWS,
    preference_fields,
    row_batches,
    row_chunks,
    text_field,
    trained_answers,
)
from rlhf_runtime.data.source_setting import SourceSetting
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column, concatenate, pack
from rlhf_runtime.environments.settings import EnvironmentDescription

BatchLimit = Callable[[Iterable[list[Row]]], Iterable[list[Row]]]
"""Selects the first of some batches, or all."""


class _Candidate(NamedTuple):
    """A row with valid contents, before its length is checked."""

    source_row: int
    text: str
    record: str
    responses: tuple[Response, ...]
    """The reference answer, if there is one; of a pair both, the chosen one first."""
    conversations: tuple[WrittenConversation, ...] = ()
    """The prompt with each response as the chat template renders them. Empty without a template, or
    if no graph trains on answers."""
    marked_text: str = ""
    """The text with OBSERVATION_MARK where an observation belongs. Empty if none is added."""


@dataclass(slots=True)
class _Collected:
    """Everything collected while rows are read."""

    answers: tuple[list[Column], ...]
    """Reference answers; for pairs the chosen responses, then the rejected ones."""
    masks: tuple[list[Column], ...]
    """Masks of these tokens; empty if all are trained on."""
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
    environment: EnvironmentDescription | None = None,
) -> PromptTable:
    """Check, render and tokenize the prompts of a source, or its pretraining texts.

    limit: selects the first batches of rows. Default: all.
    names: of the rows in messages, complete when these have been read. Default: their numbers.
    environment: the environments of conversations, whose tools prompts name. None: there are none.

    Raises:
        EmptyDataset: no rows, or none left after skipping.
        MissingField: no row has the column that the manifest names for prompts, answers or texts.
        InvalidRow: a row without usable prompt or answers, or with a number that is not finite;
            with onInvalidRow: Fail.
        PromptTooLong: a prompt over the limit, with onLongPrompt: Fail.
        ChatTemplateUnusable: a template is needed, or has arguments, and there is none.
        SeveralErrors: several of these.
    """
    writer = PromptWriter(source, setting, tokenizer, environment)
    writer.require_template_for_arguments()
    num_responses = 1 if preference_fields(source) is None else 2
    has_context = trained_answers(source) is TrainOn.ALL_ANSWERS
    collected = _Collected(
        answers=tuple(list[Column]() for _ in range(num_responses)),
        masks=tuple(list[Column]() for _ in range(num_responses if has_context else 0)),
    )
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
    return _table(collected, setting, names)


def _table(collected: _Collected, setting: SourceSetting, names: RowNames) -> PromptTable:
    # The last ones are missing without pairs.
    answers, rejected, *_ = [*map(concatenate, collected.answers), None]
    answers_mask, rejected_mask, *_ = [*map(concatenate, collected.masks), None, None]
    assert answers is not None
    return PromptTable(
        split=setting.split,
        prompts=concatenate(collected.prompts),
        texts=tuple(row.text for row in collected.rows),
        records=tuple(row.record for row in collected.rows),
        marked_texts=tuple(row.marked_text for row in collected.rows),
        answers=answers,
        rejected=rejected,
        answers_mask=answers_mask,
        rejected_mask=rejected_mask,
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
            prompt, responses = prompt_and_responses(row, source, is_trained=bool(ends))
            arguments = writer.arguments(row)
            text = writer.write(prompt, arguments)
            conversations: tuple[WrittenConversation, ...] = ()
            if writer.is_templated and ends:
                conversations = tuple(
                    write_conversation(writer, prompt, response, ends, arguments)
                    for response in responses
                )
            elif ends:
                for response in responses:
                    check_plain_response(response, source.prompt_field)
            else:
                # Nothing trains on them: verifiers read the last answer.
                responses = tuple(response[-1:] for response in responses)
            marked = writer.write_marked(prompt, arguments)
            candidates.append(
                _Candidate(source_row, text, record_json(row), responses, conversations, marked)
            )
        except RowProblem as problem:
            collected.invalid.append((source_row, str(problem)))
    return candidates


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
    responses = [
        _responses(candidates, prompts, number, tokenizer)
        for number in range(len(collected.answers))
    ]
    kept = []
    for index, (row, length, *own) in enumerate(
        zip(candidates, _lengths(prompts), *responses, strict=True)
    ):
        if length == 0:
            collected.invalid.append((row.source_row, "the tokenizer makes no token of its prompt"))
        elif length > row_limits.max_prompt_tokens:
            collected.too_long.append((row.source_row, length))
        elif problem := _response_problem(row, own, row_limits.max_answer_tokens):
            collected.invalid.append((row.source_row, problem))
        else:
            kept.append(index)
    collected.rows.extend(candidates[index] for index in kept)
    collected.prompts.append(prompts.take(np.asarray(kept, dtype=np.int64)))
    for number, own in enumerate(responses):
        runs = [own[index] for index in kept]
        collected.answers[number].append(pack([run.tokens for run in runs], np.int32))
        if collected.masks:
            collected.masks[number].append(pack([run.is_trained for run in runs], np.int8))


def _response_problem(
    row: _Candidate, responses: Sequence[ResponseTokens], limit: int | None
) -> str:
    """Describe why a row's responses cannot be trained on; empty if they can, or are not."""
    if limit is None:
        return ""
    if problem := next(filter(None, (response.problem for response in responses)), ""):
        return problem
    longest = max(len(response.tokens) for response in responses)
    if longest <= limit:
        return ""
    if any(len(response) > 1 for response in row.responses):
        return (
            f"a response of {longest} tokens from its first answer to the end token of its last "
            f"one, over {limit}"
        )
    return f"an answer of {longest} tokens with the end token, over {limit}"


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


def _responses(
    rows: list[_Candidate], prompts: Column, number: int, tokenizer: TextTokenizer
) -> list[ResponseTokens]:
    """Tokenize the responses at one position, each with an end token; none: empty."""
    if any(row.conversations for row in rows):
        conversations = [
            row.conversations[number] if number < len(row.conversations) else None for row in rows
        ]
        return tokenize_conversations(conversations, prompts, tokenizer)
    plain = [row.responses[number] if number < len(row.responses) else None for row in rows]
    return tokenize_plain_responses(plain, tokenizer)


def _lengths(column: Column) -> list[int]:
    assert column.lengths is not None
    lengths: list[int] = column.lengths.tolist()
    return lengths
