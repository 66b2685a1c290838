"""Ends of responses by an engine: stop texts, end tokens and a full context.

The oracle is the engine's own response without stop texts, cut by its text, or Hugging Face's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer, decoders, models

from rlhf_api.spec.stopping import StopReason
from rlhf_runtime.data.stop_texts import StopTexts
from rlhf_runtime.dataplane.columns import pack, repeat_rows
from rlhf_runtime.engines.response_batch import Generated, Sampling

from . import truncated_sampling as truncated
from .greedy import greedy_answers
from .tiny_models import END, VOCABULARY, ragged

if TYPE_CHECKING:
    from .vllm_ranks import Pair

MAX_PROMPT, MAX_RESPONSE = 300, 12
STOPS = (END, *range(200, 220))


def tokens_of(generated: Generated) -> list[list[int]]:
    return [run.tolist() for run in generated.tokens.runs()]


def responses_end_at_stop_texts(at: Pair) -> None:
    """A response is cut where its text first contains a stop text, also on another engine."""
    prompts = at.prompts()
    free = at.generate(prompts, 0.0)
    tokenizer = tokenizer_of_pairs()
    texts = [tokenizer.decode(run) for run in tokens_of(free)]
    first, second, third, *_ = [text for text in texts if len(text) > 20]
    stop_texts = StopTexts(tokenizer, [first[5:7], second[14:18], third[18:]])
    expected = [
        _cut_at_stop_text(run, text, stop_texts.texts)
        for run, text in zip(tokens_of(free), texts, strict=True)
    ]
    with changed_settings(at, stop_texts=stop_texts):
        got = at.generate(prompts, 0.0)
        begun = at.start(prompts, Sampling(0.0, [0] * prompts.num_rows))
        begun.run_until(lambda _: True)
        running = np.flatnonzero(~begun.has_ended)
        begun.abort()
        so_far = tokens_of(begun.generated())
        rest = at.start(pack([], np.int32), Sampling(0.0, []))
        rest.add(
            pack([[*prompts.runs()[row], *so_far[row]] for row in running], np.int32),
            Sampling(0.0, [0] * len(running)),
            [MAX_RESPONSE - len(so_far[row]) for row in running],
            num_generated=[len(so_far[row]) for row in running],
        )
        rest.run()
    assert list(zip(tokens_of(got), got.reasons, strict=True)) == expected
    for one, other in zip(got.log_probs.runs(), free.log_probs.runs(), strict=True):
        np.testing.assert_allclose(one, other[: len(one)], atol=1e-4)
    assert {*got.reasons} >= {StopReason.STOP_TEXT, StopReason.TOKEN_LIMIT}
    assert len(tokens_of(got)[texts.index(first)]) == 3, "the next token goes beyond the stop text"
    ends = rest.generated()
    assert [
        (so_far[row] + tokens, reason)
        for row, tokens, reason in zip(running, tokens_of(ends), ends.reasons, strict=True)
    ] == [expected[row] for row in running]
    assert StopReason.STOP_TEXT in ends.reasons


def a_stop_text_inside_of_an_end_token_drops_nothing(at: Pair) -> None:
    tokenizer, prompts = tokenizer_of_pairs(), repeat_rows(at.prompts(), 4)
    free = at.generate(prompts, 2.0)
    texts = [tokenizer.decode(run) for run in tokens_of(free)]
    ended = [n for n, run in enumerate(tokens_of(free)) if len(run) > 1 and run[-1] in STOPS]
    # It ends with the first letter of the end token.
    stop_texts = StopTexts(tokenizer, [texts[ended[0]][-4:-1]])
    with changed_settings(at, stop_texts=stop_texts):
        got = at.generate(prompts, 2.0)
    assert got.reasons[ended[0]] is StopReason.END_TOKEN
    assert list(zip(tokens_of(got), got.reasons, strict=True)) == [
        _cut_at_stop_text(run, text, stop_texts.texts)
        for run, text in zip(tokens_of(free), texts, strict=True)
    ]


@contextmanager
def changed_settings(at: Pair, **changes: Any) -> Iterator[None]:
    """Let an engine add sequences with other settings."""
    settings = at.engine._settings
    at.engine._settings = replace(settings, **changes)
    try:
        yield
    finally:
        at.engine._settings = settings


def tokenizer_of_pairs() -> Tokenizer:
    """Every token is two letters: a stop text may end inside of a token, and begin in another."""
    pairs = [f"{chr(97 + token // 18)}{chr(97 + token % 18)}" for token in range(VOCABULARY)]
    tokenizer = Tokenizer(models.WordLevel({pair: n for n, pair in enumerate(pairs)}, "aa"))
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def sets_end_with_the_response(at: Pair) -> None:
    """A token that goes beyond a stop text has no set either."""
    tokenizer, free = tokenizer_of_pairs(), at.generate(at.prompts(), 0.0)
    texts = [tokenizer.decode(run) for run in tokens_of(free)]
    row = next(row for row, text in enumerate(texts) if len(text) > 8)
    stop_texts = StopTexts(tokenizer, [texts[row][5:7]])
    with changed_settings(at, stop_texts=stop_texts):
        got = truncated.sample(at, at.prompts(), truncated.ONE_TOKEN)
    assert got.reasons[row] is StopReason.STOP_TEXT
    assert tokens_of(got)[row] == tokens_of(free)[row][: len(tokens_of(got)[row])]
    assert len(tokens_of(got)[row]) <= 3
    kept = [run.argmax().item() for run in truncated.dense(got).int()]
    assert kept == got.tokens.values.tolist()


def _cut_at_stop_text(
    tokens: list[int], text: str, stop_texts: Sequence[str]
) -> tuple[list[int], StopReason]:
    """Cut a response of two letters per token where its text first contains a stop text."""
    ends = [text.find(stop) + len(stop) for stop in stop_texts if stop in text]
    last = -(-min(ends, default=len(text)) // 2)
    if not ends or tokens[last - 1] in STOPS:
        own_end = tokens[-1] in STOPS
        return tokens, StopReason.END_TOKEN if own_end else StopReason.TOKEN_LIMIT
    return tokens[: last - min(ends) % 2], StopReason.STOP_TEXT


def a_full_context_ends_a_response(at: Pair) -> None:
    """Where the context leaves fewer tokens than the limit of the response."""
    longest = ragged([MAX_PROMPT, MAX_PROMPT - 1, MAX_PROMPT - 2], seed=3)
    version = at.engine.version
    assert version is not None
    with changed_settings(at, stop_token_ids=()):
        batch = at.generator.start(longest, Sampling(0.0, [0] * 3), version, MAX_RESPONSE + 1)
        batch.run()
    first, *others = greedy_answers(at.peer(), longest, (), MAX_RESPONSE + 1, at.excluded_ids)
    got = batch.generated()
    assert tokens_of(got) == [first[:MAX_RESPONSE], *others]
    assert got.reasons == (StopReason.CONTEXT_LIMIT, *[StopReason.TOKEN_LIMIT] * 2)
