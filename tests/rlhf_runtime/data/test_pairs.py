"""Rows of preference pairs, as people publish them."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt, TrainingData
from rlhf_runtime.data.errors import InvalidRow, MissingField
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer

LIMIT = 8


def build(
    rows: list[Any], tokenizer: TextTokenizer, on_invalid: str = "Fail", **source: Any
) -> PromptTable:
    policy = RowLimits(99, LIMIT, OnInvalidRow(on_invalid), OnLongPrompt.FAIL, 99)
    given = {"preferences": {}, **source}
    data = TrainingData.model_validate({"path": "rows.jsonl", **given})
    return build_prompt_table(rows, data, SourceSetting(Split.TRAIN), tokenizer, policy)


def texts_of(table: PromptTable, tokenizer: TextTokenizer) -> list[tuple[str, str, str]]:
    assert table.rejected is not None
    answers = (tokenizer.decode(column) for column in (table.answers, table.rejected))
    return list(zip(table.texts, *answers, strict=True))


def said(role: str, content: str) -> dict[str, Any]:
    return {"role": role, "content": content, "name": None}


def test_responses_stand_in_maps(tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "21=", "pair": {"better": "12", "worse": "21"}}]
    preferences = {"chosenField": "pair.better", "rejectedField": "pair.worse"}
    table = build(rows, tokenizer, preferences=preferences)
    assert texts_of(table, tokenizer) == [("21=", "12", "21")]


def test_texts_answer_the_prompt(tokenizer: TextTokenizer) -> None:
    rows = [{"question": "21=", "better": "12", "worse": "21"}]
    preferences = {"chosenField": "better", "rejectedField": "worse"}
    table = build(rows, tokenizer, promptField="question", preferences=preferences)
    assert texts_of(table, tokenizer) == [("21=", "12", "21")]
    assert table.rejected is not None
    ends = [run[-1] for column in (table.answers, table.rejected) for run in column.runs()]
    assert ends == [tokenizer.eos_token_id] * 2
    assert table.record(0) == rows[0]


CONVERSATION = [said("user", "1="), said("assistant", "a"), said("user", "2=")]
WRITTEN = "<user>1=<eos><assistant>a<eos><user>2=<eos><assistant>"
BRIEF = said("system", "Be brief.")
GOOD, BAD = said("assistant", "x"), said("assistant", "y")


@pytest.mark.parametrize(
    ("row", "prompt"),
    [
        ({"prompt": "1=", "chosen": [GOOD], "rejected": [BAD]}, "<user>1=<eos><assistant>"),
        ({"prompt": CONVERSATION, "chosen": [GOOD], "rejected": [BAD]}, WRITTEN),
        ({"chosen": [*CONVERSATION, GOOD], "rejected": [*CONVERSATION, BAD]}, WRITTEN),
        (
            {"prompt": "2=", "chosen": [*CONVERSATION, GOOD], "rejected": [*CONVERSATION, BAD]},
            WRITTEN,
        ),
        ({"prompt": CONVERSATION, "chosen": "x", "rejected": "y"}, WRITTEN),
        (
            {"prompt": "1=", "chosen": [BRIEF, GOOD], "rejected": [BRIEF, BAD]},
            "<system>Be brief.<eos><user>1=<eos><assistant>",
        ),
    ],
)
def test_conversations_share_their_beginning(
    chat_tokenizer: TextTokenizer, row: dict[str, Any], prompt: str
) -> None:
    assert texts_of(build([row], chat_tokenizer), chat_tokenizer) == [(prompt, "x", "y")]


USER = said("user", "1=")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"prompt": "1", "chosen": "a"}, "rejected is null or missing"),
        ({"prompt": "1", "chosen": " ", "rejected": "b"}, "chosen is an empty text"),
        ({"prompt": "1", "chosen": "a", "rejected": 3}, "rejected is of type int"),
        ({"prompt": "1", "chosen": "a", "rejected": "a"}, "chosen and rejected are equal"),
        ({"chosen": "a", "rejected": "b"}, "no field prompt"),
        ({"prompt": "1", "chosen": "a" * LIMIT, "rejected": "b"}, "an answer of 9 tokens"),
        ({"prompt": "1", "chosen": "a", "rejected": "b" * LIMIT}, "an answer of 9 tokens"),
        ({"prompt": "1", "chosen": [GOOD], "rejected": "b"}, "chosen is of type list"),
        ({"chosen": [GOOD], "rejected": [BAD]}, "no field prompt"),
        ({"chosen": [USER, GOOD], "rejected": [USER, GOOD]}, "chosen and rejected are equal"),
        ({"chosen": [USER, GOOD, USER, GOOD], "rejected": [USER, BAD]}, "of assistant, user, assi"),
        ({"chosen": [USER, GOOD], "rejected": [USER, USER]}, "rejected ends with messages of user"),
    ],
)
def test_a_row_that_is_no_pair_is_named_or_skipped(
    chat_tokenizer: TextTokenizer, row: dict[str, Any], why: str
) -> None:
    fine = {"prompt": "1", "chosen": "a", "rejected": "b"}
    with pytest.raises(InvalidRow, match=f"row 1: .*{why}.*at most rollout.maxResponseTokens = 8"):
        build([fine, row], chat_tokenizer)
    table = build([fine, row, fine], chat_tokenizer, on_invalid="Skip")
    assert (table.source_rows.tolist(), table.rows_invalid) == ([0, 2], 1)


def test_columns_that_are_nowhere_are_named(tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "1", "good": "a", "rejected": "b"}]
    with pytest.raises(
        MissingField, match=r"preferences\.chosenField .*got chosen, allowed prompt"
    ):
        build(rows, tokenizer)
