"""Tables of rows with conversations, and their parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt, TrainingData
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column
from rlhf_runtime.environments.settings import EnvironmentDescription

LIMIT = 60
ALL, LAST = "AllAnswers", "LastAnswer"


def said(role: str, content: str, **parts: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "name": None, **parts}


def talk(*contents: str) -> list[dict[str, Any]]:
    """A conversation in which user and assistant take turns."""
    roles = ("user", "assistant") * len(contents)
    return [said(role, content) for role, content in zip(roles, contents, strict=False)]


def build(
    rows: Sequence[dict[str, Any]],
    tokenizer: TextTokenizer,
    train_on: str = ALL,
    limit: int | None = LIMIT,
    on_invalid: str = "Fail",
    environment: EnvironmentDescription | None = None,
    max_prompt: int = 99,
    **source: Any,
) -> PromptTable:
    limits = RowLimits(max_prompt, limit, OnInvalidRow(on_invalid), OnLongPrompt.FAIL, 99)
    fields = {"promptField": "messages", "answerField": "messages"}
    if "preferences" in source:
        fields = {}
    data = TrainingData.model_validate(
        {"path": "rows.jsonl", **fields, "trainOn": train_on, **source}
    )
    setting = SourceSetting(Split.TRAIN)
    return build_prompt_table(rows, data, setting, tokenizer, limits, environment=environment)


def runs(column: Column | None) -> list[list[int]]:
    assert column is not None
    return [run.tolist() for run in column.runs()]


def parts_of(
    tokenizer: TextTokenizer, answers: Column | None, masks: Column | None, row: int = 0
) -> list[tuple[bool, str]]:
    """The texts of a response's trained and other tokens, in order."""
    tokens, mask = runs(answers)[row], runs(masks)[row]
    cuts = [0, *np.flatnonzero(np.diff(mask)) + 1, len(mask)]
    return [
        (mask[begin] == 1, tokenizer.text_of(tokens[begin:end]))
        for begin, end in zip(cuts[:-1], cuts[1:], strict=True)
    ]
