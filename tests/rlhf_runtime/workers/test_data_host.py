"""Rows of a table as batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt, TrainingData
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.prompts import PromptPolicy, build_prompt_table
from rlhf_runtime.data.rows import Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.workers.data_host import batch_of

POLICY = PromptPolicy(99, None, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 99)
EVERYTHING = ("prompt_id", "prompt_tokens", "record", "response_tokens")


def tokenizer_in(folder: Path) -> TextTokenizer:
    write_tokenizer(folder)
    return TextTokenizer(folder)


def test_a_pair_is_two_neighbouring_rows_of_one_group(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path)
    rows = [{"prompt": f"{n}=", "chosen": f"{n}", "rejected": f"no {n}"} for n in range(5)]
    source = TrainingData.model_validate({"path": "rows.jsonl", "preferences": {}})
    table = build_prompt_table(rows, source, Split.TRAIN, tokenizer, POLICY)
    shard = batch_of(table, np.array([3, 1]), (*EVERYTHING, "preference"))
    index, columns = shard.index, shard.columns
    assert index.rows.tolist() == [0, 1, 2, 3] and index.groups.tolist() == [0, 0, 1, 1]
    assert columns["prompt_id"].values.tolist() == [3, 3, 1, 1]
    assert tokenizer.decode(columns["prompt_tokens"]) == ["3=", "3=", "1=", "1="]
    assert tokenizer.decode(columns["response_tokens"]) == ["3", "no 3", "1", "no 1"]
    assert columns["preference"].values.tolist() == [1, -1, 1, -1]
    assert columns["preference"].values.dtype == np.int8
    assert ['"rejected": "no 3"' in text for text in columns["record"].texts()] == [1, 1, 0, 0]
    assert index.lengths.tolist() == [4, 7, 4, 7], "prompt, answer and end token"


def test_only_the_fields_that_are_read_are_made(tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}=", "answer": "12"} for n in range(3)]
    source = TrainingData(path="rows.jsonl", answer_field="answer")
    table = build_prompt_table(rows, source, Split.TRAIN, tokenizer_in(tmp_path), POLICY)
    shard = batch_of(table, np.array([2, 0]), ("prompt_tokens",))
    index, columns = shard.index, shard.columns
    assert list(columns) == ["prompt_tokens"] and index.groups.tolist() == [0, 1]
    assert index.lengths.tolist() == [2, 2]
    shard = batch_of(table, np.array([2, 0]), EVERYTHING)
    index, columns = shard.index, shard.columns
    assert list(columns) == list(EVERYTHING) and index.lengths.tolist() == [5, 5]
