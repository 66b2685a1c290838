"""Rows of generators of the package reasoning_gym."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest

from rlhf_api.spec.data import TrainingData
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import DataNotFound, DataUnreadable, InvalidRow, MissingField
from rlhf_runtime.data.files import Row
from rlhf_runtime.data.load import DataUse, load_prompts
from rlhf_runtime.data.row_location import RowLocations
from rlhf_runtime.data.rows import read_rows
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer

reasoning_gym = pytest.importorskip("reasoning_gym", reason="an extra that needs a C compiler")


def source(dataset: str, **fields: Any) -> DataSource:
    return DataSource.model_validate({"reasoningGym": {"dataset": dataset, **fields}})


def rows_of(dataset: str, split: Split = Split.TRAIN, **fields: Any) -> Iterator[Row]:
    return read_rows(source(dataset, **fields), SourceSetting(split), seed=3)


def test_rows_are_those_of_the_package_with_the_question_as_prompt() -> None:
    parameters = {"min_terms": 3, "max_terms": 4}
    rows = list(rows_of("chain_sum", seed=5, size=8, parameters=parameters))
    expected = reasoning_gym.create_dataset("chain_sum", seed=5, size=8, **parameters)
    assert rows == [
        {
            "prompt": item["question"],
            **json.loads(json.dumps(item)),
            "parameters": parameters,
        }
        for item in expected
    ]


# In the package their rows depend on the order of sets of texts, and some on Python's global
# generator of random numbers.
@pytest.mark.parametrize(("dataset", "size"), [("ransom_note", 4), ("list_functions", 30)])
def test_rows_are_the_same_in_every_process(
    dataset: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = []
    for hash_seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", hash_seed)
        runs.append(list(rows_of(dataset, size=size)))
    assert runs[0] == runs[1] and len(runs[0]) == size


def test_the_evaluation_has_other_rows_by_default() -> None:
    train, held_out = (
        [row["prompt"] for row in rows_of("spell_backward", split, size=40)]
        for split in (Split.TRAIN, Split.EVALUATION)
    )
    assert train == [row["prompt"] for row in rows_of("spell_backward", seed=0, size=40)]
    assert train != held_out
    # Row i is made from seed + i.
    shifted = [row["prompt"] for row in rows_of("spell_backward", seed=1, size=39)]
    assert shifted == train[1:]


def test_lists_are_parameters_and_reach_the_generator() -> None:
    rows = list(rows_of("basic_arithmetic", size=6, parameters={"operators": ["*"]}))
    assert all("*" in row["prompt"] and "+" not in row["prompt"] for row in rows)
    assert rows[0]["parameters"] == {"operators": ["*"]}


def test_values_that_json_lacks_are_texts() -> None:
    rows = list(rows_of("gsm_symbolic", seed=0, size=8))
    assert rows[7]["metadata"]["variables"]["serving_fraction"] == "2"


def test_rows_are_made_as_they_are_taken() -> None:
    """A million rows would take ten minutes."""
    assert len(list(islice(rows_of("chain_sum", size=1_000_000), 3))) == 3


@pytest.mark.parametrize(
    ("dataset", "fields", "reason", "text"),
    [
        ("composite", {}, "DataNotFound", "joins others.*name each of them in sources"),
        ("codeio", {}, "DataNotFound", "differ between processes.*write its rows into a file"),
        ("chain_sum", {"parameters": {"a": 2}}, "DataNotFound", "no such parameter: got a"),
        (
            "chain_sum",
            {"parameters": {"min_terms": 2, "max_terms": 2.5}},
            *("DataUnreadable", "chain_sum cannot make row 0"),
        ),
    ],
)
def test_errors_of_a_generator_name_the_source(
    dataset: str, fields: dict[str, Any], reason: str, text: str
) -> None:
    with pytest.raises((DataNotFound, DataUnreadable), match=text) as caught:
        list(rows_of(dataset, **fields))
    location = caught.value.location
    assert caught.value.reason == reason and location is not None
    assert location[:4] == ("spec", "data", "train", "reasoningGym")


def job(train: dict[str, Any], **data: Any) -> RLHFJobSpec:
    return RLHFJobSpec.model_validate(
        {
            "algorithm": {"type": "GRPO"},
            "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
            "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.reasoning_gym:score"}}],
            "rollout": {"samplesPerPrompt": 2, "maxPromptTokens": 4096, "maxResponseTokens": 512},
            "schedule": {"steps": 1, "promptsPerStep": 4},
            "data": {"train": train, **data},
        }
    )


def test_rows_are_prompts_with_answers_beside_files_with_other_columns(
    chat_tokenizer: TextTokenizer,
) -> None:
    parts = [
        {"reasoningGym": {"dataset": "chain_sum", "size": 20}, "name": "sums"},
        {"reasoningGym": {"dataset": "needle_haystack", "size": 20}, "maxRows": 5},
    ]
    held_out = {"reasoningGym": {"dataset": "chain_sum", "size": 7}}
    spec = job({"sources": parts, "promptField": "question"}, evaluation=held_out)
    prompts = load_prompts(spec, chat_tokenizer)
    assert prompts.train.sizes == (20, 5) and prompts.evaluation is not None
    assert prompts.train.record(0)["metadata"]["source_dataset"] == "chain_sum"
    assert prompts.train.record(20)["metadata"]["source_dataset"] == "needle_haystack"
    prompts.train.require_answers()
    assert spec.data.evaluation is not None and spec.data.evaluation.most_rows == 7


def test_training_on_answers_needs_rows_that_have_some(chat_tokenizer: TextTokenizer) -> None:
    spec = job({"reasoningGym": {"dataset": "propositional_logic", "size": 8}})
    assert len(load_prompts(spec, chat_tokenizer).train) == 8
    with pytest.raises(InvalidRow, match="answer is null or missing"):
        load_prompts(spec, chat_tokenizer, DataUse(trains_on_answers=True))


def test_the_process_of_a_generator_ends_with_an_error_that_is_kept(
    chat_tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start = subprocess.Popen.__init__

    def record(process: subprocess.Popen[bytes], *arguments: Any, **options: Any) -> None:
        start(process, *arguments, **options)
        started.append(process)

    monkeypatch.setattr(subprocess.Popen, "__init__", record)
    spec = job({"reasoningGym": {"dataset": "chain_sum", "size": 1_000_000}, "promptField": "no"})
    with pytest.raises(MissingField) as kept:
        load_prompts(spec, chat_tokenizer)
    assert kept.value and [process.poll() is not None for process in started] == [True]


def test_a_source_has_its_name_in_messages() -> None:
    (text,) = RowLocations().find(source("chain_sum"), [4])
    assert text == "reasoning_gym chain_sum, row 4, counted from 0"


def test_data_are_the_same_after_they_were_written() -> None:
    data = TrainingData.model_validate(
        {"reasoningGym": {"dataset": "countdown", "parameters": {"operators": ["+", "-"], "a": 1}}}
    )
    written = data.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert TrainingData.model_validate(written) == data
