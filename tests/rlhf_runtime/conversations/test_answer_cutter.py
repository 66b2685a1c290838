"""Answers of tools that are too long."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_api.spec.conversation import ConversationLimits
from rlhf_runtime.conversations.answer_cutter import AnswerCutter


def spans_of_words(text: str) -> list[slice]:
    return [slice(*match.span()) for match in re.finditer(r"\S+\s*", text)]


@pytest.mark.parametrize(
    ("side", "limit", "cut"),
    [
        ("End", 3, "ä1 ä2 ä3 "),
        ("Start", 3, "ä3 ä4 ä5"),
        ("Middle", 3, "ä1 ä2 ä5"),
        ("Middle", 4, "ä1 ä2 ä4 ä5"),
        ("Middle", 1, "ä1 "),
        ("End", 5, "ä1 ä2 ä3 ä4 ä5"),
    ],
)
def test_an_answer_has_at_most_so_many_tokens(side: str, limit: int, cut: str) -> None:
    limits = ConversationLimits.model_validate({"answerTokens": limit, "answerCut": side})
    tokenizer: Any = SimpleNamespace(character_spans=spans_of_words)
    assert AnswerCutter(tokenizer, limits).cut("ä1 ä2 ä3 ä4 ä5") == cut


def test_a_short_answer_is_not_tokenized() -> None:
    limits = ConversationLimits.model_validate({"answerTokens": 5})
    tokenizer: Any = None
    assert AnswerCutter(tokenizer, limits).cut("12345") == "12345"
