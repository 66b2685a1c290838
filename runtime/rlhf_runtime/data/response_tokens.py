"""Converts responses to token ids, and marks the tokens that are trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf_runtime.data.row_conversations import Answer, WrittenConversation
from rlhf_runtime.data.row_messages import ASSISTANT, Response
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.answer_texts import AnswerTexts
from rlhf_runtime.data.tool_calls.plain_answers import answer_lines
from rlhf_runtime.dataplane.columns import Column

Tokens = NDArray[np.int32]


class ResponseTokens(NamedTuple):
    """Token ids of a response; empty without one."""

    tokens: Tokens
    """int32[tokens], the end token included."""
    is_trained: NDArray[np.int8]
    """int8[tokens]: 1 for a token of a trained answer, 0 for others."""
    problem: str = ""
    """The reason why the response cannot be used; empty: it can be."""


def tokenize_plain_responses(
    responses: Sequence[Response | None], tokenizer: TextTokenizer
) -> list[ResponseTokens]:
    """Tokenize responses that no chat template renders, each answer with an end token.

    The tokens are those of a conversation with tools, see `PlainAnswers`.

    Args:
        responses: messages of the assistant and of tools; None: the row has none.
        tokenizer: the policy's.
    """
    end, texts = tokenizer.end_texts()[0], AnswerTexts(tokenizer)
    parts = [_plain_parts(response or (), end, texts) for response in responses]
    encoded = _encode(tokenizer, [part.text for own in parts for part in own])
    close = np.asarray([tokenizer.eos_token_id], dtype=np.int32)
    made = []
    for own in parts:
        runs, flags = list[Tokens](), list[NDArray[np.int8]]()
        for part in own:
            run = next(encoded)
            # The begin of a text is tokenized in another way: so an end token is in front.
            run = np.concatenate([run, close]) if part.is_answer else run[1:]
            runs.append(run)
            flags.append(np.full(len(run), part.is_trained, dtype=np.int8))
        made.append(ResponseTokens(_joined(runs, np.int32), _joined(flags, np.int8)))
    return made


class _PlainPart(NamedTuple):
    """An answer of the assistant, or the text behind it."""

    text: str
    is_answer: bool
    is_trained: bool


def _plain_parts(response: Response, end: str, texts: AnswerTexts) -> list[_PlainPart]:
    parts = []
    for is_answer, messages in groupby(response, lambda message: message["role"] == ASSISTANT):
        if is_answer:
            parts += [
                _PlainPart(message["content"], True, message.get("weight", 1) == 1)
                for message in messages
            ]
        else:
            lines = answer_lines([texts.harmless(message["content"]) for message in messages])
            parts.append(_PlainPart(end + lines, False, False))
    return parts


def _joined(runs: Sequence[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate([np.zeros(0, dtype), *runs])


def tokenize_conversations(
    conversations: Sequence[WrittenConversation | None], prompts: Column, tokenizer: TextTokenizer
) -> list[ResponseTokens]:
    """Tokenize what follows the prompts in conversations.

    Args:
        conversations: as the chat template renders them; None: the row has no response.
        prompts: token ids of the texts up to the first answers.
        tokenizer: the policy's.
    """
    rows = [row for row in conversations if row is not None]
    # A conversation is cut at its end tokens, at which tokenizers cut texts, too. Each part but the
    # first begins with the end token before it, since tokenizers treat the begin of a text in
    # another way. So the work is linear in the length of the conversation.
    parts = _encode(tokenizer, [row.text[a : b.end] for row in rows for a, b in _parts(row)])
    later = [(row, a, b) for row in rows for a, b in list(_parts(row))[1:]]
    contexts = _encode(tokenizer, [row.text[a : b.begin] for row, a, b in later])
    wholes = _encode(tokenizer, [row.text for row in rows if len(row.answers) > 1])
    responses = []
    for row, prompt in zip(conversations, prompts.runs(), strict=True):
        if row is None:
            responses.append(_all_trained(np.zeros(0, dtype=np.int32)))
            continue
        own = [next(parts) for _ in row.answers]
        before = [np.asarray(prompt, dtype=np.int32), *(next(contexts) for _ in own[1:])]
        response = _join(row, own, before, tokenizer)
        if len(own) > 1 and not _is_whole(own, next(wholes)):
            response = response._replace(
                problem="the tokenizer joins the end token of an answer with the text behind it; "
                "set trainOn: LastAnswer"
            )
        responses.append(response)
    return responses


def _parts(row: WrittenConversation) -> Iterator[tuple[int, Answer]]:
    """Yield the begin of the part of the text in front of each answer, and the answer."""
    begin = 0
    for answer in row.answers:
        yield begin, answer
        begin = answer.end_token


def _join(
    row: WrittenConversation,
    parts: Sequence[Tokens],
    before: Sequence[Tokens],
    tokenizer: TextTokenizer,
) -> ResponseTokens:
    """Join the answers of a conversation and the context between them.

    Args:
        row: the conversation.
        parts: tokens of each part of the text, its answer included.
        before: tokens of each part without its answer.
        tokenizer: the policy's.
    """
    runs, flags = list[Tokens](), list[NDArray[np.int8]]()
    for number, (answer, part, context) in enumerate(zip(row.answers, parts, before, strict=True)):
        # A token may begin in the context and end in the answer. Generation would never make it.
        if np.array_equal(part[: len(context)], context):
            run = part[len(context) :]
        else:
            run = next(_encode(tokenizer, [row.text[answer.begin : answer.end]]))
        if len(run) and run[-1] not in tokenizer.end_token_ids:
            run = np.append(run, np.int32(tokenizer.eos_token_id))
        # The prompt is no part of the response; other contexts begin with the last end token.
        between = context[1:] if number else context[:0]
        runs += [between, run]
        flags += [
            np.zeros(len(between), dtype=np.int8),
            np.full(len(run), answer.is_trained, dtype=np.int8),
        ]
    return ResponseTokens(np.concatenate(runs), np.concatenate(flags))


def _is_whole(parts: Sequence[Tokens], whole: Tokens) -> bool:
    """True if the parts of a conversation, joined at their end tokens, are all of its tokens."""
    first, *others = parts
    return np.array_equal(np.concatenate([first, *(part[1:] for part in others)]), whole) and all(
        one[-1] == other[0] for one, other in zip(parts, others, strict=False)
    )


def _all_trained(tokens: Tokens) -> ResponseTokens:
    return ResponseTokens(tokens, np.ones(len(tokens), dtype=np.int8))


def _encode(tokenizer: TextTokenizer, texts: Sequence[str]) -> Iterator[Tokens]:
    # A chat template writes special tokens itself.
    column = tokenizer.encode(texts, add_special_tokens=False)
    return (run.astype(np.int32, copy=False) for run in column.runs())
