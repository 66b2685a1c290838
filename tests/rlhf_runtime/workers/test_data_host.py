"""Rows of a table as batches."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np

from rlhf_api.plan import GraphInputs, GraphName
from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt, TrainingData
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.calls.reports import CallReport
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.load import DataUse, load_prompts
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.workers.activity import ActivityServer
from rlhf_runtime.workers.data_host import DataHost, batch_of

POLICY = RowLimits(99, None, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 99)
EVERYTHING = ("prompt_id", "prompt_tokens", "record", "response_tokens")


def tokenizer_in(folder: Path) -> TextTokenizer:
    write_tokenizer(folder)
    return TextTokenizer(folder)


def test_a_pair_is_two_neighbouring_rows_of_one_group(tmp_path: Path) -> None:
    tokenizer = tokenizer_in(tmp_path)
    rows = [{"prompt": f"{n}=", "chosen": f"{n}", "rejected": f"no {n}"} for n in range(5)]
    source = TrainingData.model_validate({"path": "rows.jsonl", "preferences": {}})
    table = build_prompt_table(rows, source, SourceSetting(Split.TRAIN), tokenizer, POLICY)
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
    table = build_prompt_table(
        rows, source, SourceSetting(Split.TRAIN), tokenizer_in(tmp_path), POLICY
    )
    shard = batch_of(table, np.array([2, 0]), ("prompt_tokens",))
    index, columns = shard.index, shard.columns
    assert list(columns) == ["prompt_tokens"] and index.groups.tolist() == [0, 1]
    assert index.lengths.tolist() == [2, 2]
    shard = batch_of(table, np.array([2, 0]), EVERYTHING)
    index, columns = shard.index, shard.columns
    assert list(columns) == list(EVERYTHING) and index.lengths.tolist() == [5, 5]


def test_rounds_of_a_step_get_prompts_that_no_other_round_of_an_epoch_had(tmp_path: Path) -> None:
    """Steps of at most three rounds with four prompts each, out of 24: two steps are an epoch."""
    spec = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
        "rewards": [{"function": {"entrypoint": "mine:score"}}],
        "schedule": {"steps": 2, "promptsPerStep": 4},
        "rollout": {"samplesPerPrompt": 2},
        "data": {
            "train": {"builtin": "SortDigits", "maxRows": 24},
            "pretraining": {"builtin": "SortDigits", "maxRows": 6, "rowsPerStep": 3},
        },
    }
    host = DataHost.__new__(DataHost)
    ActivityServer.__init__(host)
    read = ("prompt_id",)
    host._job = SimpleNamespace(spec=RLHFJobSpec.model_validate(spec))
    given = GraphInputs(prompts=read, pretraining=read, prompt_batches=3)
    host._plan = SimpleNamespace(inputs={GraphName.STEP: given})
    use = DataUse(batches_per_step=3)
    host._prompts = load_prompts(host._job.spec, tokenizer_in(tmp_path), use)

    def taken(step: int, number: int) -> list[int]:
        _, shard = host.batch(GraphName.STEP, step, number)
        ids: list[int] = shard.columns["prompt_id"].values.tolist()
        return ids

    rounds = [taken(step, number) for step in (1, 2) for number in range(3)]
    assert sorted(sum(rounds, [])) == list(range(24))
    assert taken(2, 1) == rounds[4], "whatever was asked for before"
    texts = [host.pretraining(GraphName.STEP, step)[1].columns["prompt_id"] for step in (1, 2)]
    assert sorted(np.concatenate([column.values for column in texts]).tolist()) == list(range(6))


def test_a_step_takes_prompts_of_its_sources_by_weight(tmp_path: Path) -> None:
    sources = [
        {"builtin": "SortDigits", "maxRows": 12, "weight": 3, "name": "digits"},
        {"builtin": "SortDigits", "maxRows": 4},
    ]
    spec = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
        "rewards": [{"function": {"entrypoint": "mine:score"}}],
        "schedule": {"steps": 2, "promptsPerStep": 4, "warmStart": {"promptsPerStep": 8}},
        "rollout": {"samplesPerPrompt": 2},
        "data": {"train": {"sources": sources}},
    }
    host = DataHost.__new__(DataHost)
    ActivityServer.__init__(host)
    host._job = SimpleNamespace(spec=RLHFJobSpec.model_validate(spec))
    inputs = GraphInputs(prompts=("prompt_id", "record"))
    host._plan = SimpleNamespace(
        inputs={GraphName.STEP: inputs, GraphName.WARM_START: inputs, GraphName.EVALUATION: inputs}
    )
    host._prompts = load_prompts(host._job.spec, tokenizer_in(tmp_path), DataUse(evaluates=False))
    seen: list[int] = []
    for step in range(1, 5):
        message, shard = host.batch(GraphName.STEP, step)
        sources_of = [json.loads(text)["source"] for text in shard.columns["record"].texts()]
        assert sorted(sources_of) == ["1", "digits", "digits", "digits"]
        ids = shard.columns["prompt_id"].values.tolist()
        assert [number >> 40 for number in ids] == [int(name == "1") for name in sources_of]
        seen += ids
        report = CallReport.from_bytes(message)
        assert report.statistics.maxima == {
            "data/digits/epochs": step * 3 / 12,
            "data/1/epochs": step / 4,
        }
    assert len(set(seen)) == 16, "both sources have ended an epoch"
    _, shard = host.batch(GraphName.WARM_START, 1)
    names = [json.loads(text)["source"] for text in shard.columns["record"].texts()]
    assert names.count("digits") == 6
    # As a driver that goes on at this step: whatever was asked for before.
    again = host.batch(GraphName.STEP, 3)[1].columns["prompt_id"].values.tolist()
    assert again == seen[8:12]
