from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from rlhf_api.errors import SeveralErrors
from rlhf_api.plan import GraphInputs, GraphName
from rlhf_api.spec.data import PreferenceFields
from rlhf_api.spec.job import RLHFJobSpec
from rlhf_runtime.data.errors import (
    DataError,
    DatasetTooSmall,
    InvalidRow,
    MissingAnswer,
    MissingField,
    SourceUnused,
)
from rlhf_runtime.data.load import DataUse, evaluation_source, load_prompts, rows_needed
from rlhf_runtime.data.source_setting import Split
from rlhf_runtime.data.tokenizer import TextTokenizer


def job(train: dict[str, Any], **changes: Any) -> RLHFJobSpec:
    """A job that reads the given data."""
    data = {"train": train, **changes.pop("data", {})}
    spec = {
        "algorithm": {"type": "GRPO"},
        "models": {"actor": {"source": {"builtin": "TinyLlama"}}},
        "rewards": [{"function": {"entrypoint": "rlhf_runtime.rewards.math:verify"}}],
        "rollout": {"samplesPerPrompt": 2, **changes.pop("rollout", {})},
        "schedule": {"steps": 1, "promptsPerStep": 4, **changes.pop("schedule", {})},
        "data": data,
        **changes,
    }
    return RLHFJobSpec.model_validate(spec)


def write_jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def test_a_builtin_task_brings_its_held_out_prompts(tokenizer: TextTokenizer) -> None:
    prompts = load_prompts(job({"builtin": "SortDigits", "maxRows": 50}), tokenizer)
    assert prompts.evaluation is not None
    assert len(prompts.train) == 50
    assert len(prompts.evaluation) == 256
    assert not set(prompts.train.texts) & set(prompts.evaluation.texts)
    prompts.train.require_answers()


def test_problems_come_from_jsonl_and_parquet(
    tmp_path: Path, chat_tokenizer: TextTokenizer, problems: list[dict[str, str]]
) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(problems[6:]), tmp_path / "test.parquet")
    train = {"path": write_jsonl(tmp_path / "train.jsonl", problems[:6])}
    evaluation = {"path": str(tmp_path / "test.parquet"), "promptField": "question"}
    spec = job({**train, "promptField": "question"}, data={"evaluation": evaluation})
    prompts = load_prompts(spec, chat_tokenizer)
    assert prompts.evaluation is not None
    assert prompts.train.texts[0] == f"<user>{problems[0]['question']}<eos><assistant>"
    assert prompts.evaluation.record(1) == problems[7]
    assert chat_tokenizer.decode(prompts.train.answers)[0] == problems[0]["answer"]


def test_a_file_has_no_held_out_prompts_unless_named(tmp_path: Path) -> None:
    assert evaluation_source(job({"path": "rows.jsonl"}).data) is None


def test_data_is_checked_against_the_schedule(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    train = {"path": write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1"}] * 6)}
    assert load_prompts(job(train), tokenizer).evaluation is None
    with pytest.raises(DatasetTooSmall, match=r"schedule\.promptsPerStep = 7"):
        load_prompts(job(train, schedule={"promptsPerStep": 7}), tokenizer)
    with pytest.raises(SeveralErrors) as several:
        load_prompts(job(train, schedule={"warmStart": {}}), tokenizer)
    short, answers = several.value.errors
    assert isinstance(short, DatasetTooSmall) and isinstance(answers, MissingAnswer)
    assert "schedule.warmStart.promptsPerStep = 128" in str(short)
    with pytest.raises(MissingAnswer):
        load_prompts(job(train, schedule={"warmStart": {"promptsPerStep": 2}}), tokenizer)


def test_a_nan_in_the_data_is_an_error_that_names_the_row(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "1"}\n{"prompt": NaN}\n')
    with pytest.raises(InvalidRow, match="row 1: prompt is NaN"):
        load_prompts(job({"path": str(file)}), tokenizer)
    spec = job({"path": str(file)}, data={"onInvalidRow": "Skip"}, schedule={"promptsPerStep": 1})
    assert load_prompts(spec, tokenizer).train.rows_invalid == 1


def test_answers_that_are_trained_on_must_fit(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "1", "answer": "2" * size} for size in (1, 3, 4)]
    train = {"path": write_jsonl(tmp_path / "rows.jsonl", rows), "answerField": "answer"}
    spec = job(train, schedule={"promptsPerStep": 2}, rollout={"maxResponseTokens": 4})
    assert len(load_prompts(spec, tokenizer).train) == 3, "a verifier may read long ones"
    with pytest.raises(InvalidRow, match="row 2: an answer of 5 tokens with the end token, over 4"):
        load_prompts(spec, tokenizer, DataUse(trains_on_answers=True))


def test_whole_texts_are_trained_on_but_for_their_first_token(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    texts = write_jsonl(tmp_path / "texts.jsonl", [{"text": "1234"}, {"text": "5" * 40}])
    spec = job(
        {"builtin": "SortDigits"},
        data={"pretraining": {"path": texts, "rowsPerStep": 2}},
        rollout={"maxPromptTokens": 8, "maxResponseTokens": 8},
    )
    table = load_prompts(spec, tokenizer).pretraining
    assert table is not None and len(table) == 2
    assert tokenizer.decode(table.prompts) == ["1", "5"]
    assert tokenizer.decode(table.answers) == ["234", "5" * 15], "cut at 16 tokens, with no end"
    assert [len(run) for run in table.answers.runs()] == [4, 15], "the end token closes the first"
    assert table.rows_cut == 1


@pytest.mark.parametrize(
    ("rows", "source", "error", "message"),
    [
        ([{"body": "1"}], {}, MissingField, r"pretraining\.textField.*got text, allowed body"),
        (
            [{"text": "1"}, {"text": " "}],
            {},
            InvalidRow,
            r"pretraining \(.*texts\.jsonl\) has 1 .*row 1: text is",
        ),
        ([{"text": "1"}], {"rowsPerStep": 2}, DatasetTooSmall, r"pretraining\.rowsPerStep = 2"),
        ([{"text": "1"}], {}, DatasetTooSmall, r"got 1 usable.*schedule\.promptsPerStep = 4"),
        ([{"prompt": "1"}], {"answerField": "a"}, MissingField, "pretraining.answerField"),
    ],
)
def test_rows_of_pretraining_that_cannot_be_used_are_named(
    tmp_path: Path,
    tokenizer: TextTokenizer,
    rows: list[dict[str, Any]],
    source: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    pretraining = {"path": write_jsonl(tmp_path / "texts.jsonl", rows), **source}
    spec = job({"builtin": "SortDigits"}, data={"pretraining": pretraining})
    with pytest.raises(error, match=message):
        load_prompts(spec, tokenizer)


def test_pretraining_may_be_answers_to_prompts(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": f"{n}=", "answer": n} for n in range(4)]
    pretraining = {"path": write_jsonl(tmp_path / "rows.jsonl", rows), "answerField": "answer"}
    spec = job({"builtin": "SortDigits"}, data={"pretraining": pretraining})
    table = load_prompts(spec, tokenizer).pretraining
    assert table is not None and tokenizer.decode(table.prompts)[3] == "3="
    assert tokenizer.decode(table.answers) == ["0", "1", "2", "3"]


def test_written_conversations_of_the_builtin_task_are_trained_on(
    tokenizer: TextTokenizer,
) -> None:
    written = {"answerField": "conversation", "trainOn": "AllAnswers"}
    train = {"builtin": "Calculations", "maxRows": 50, **written}
    spec = job(train, schedule={"warmStart": {"promptsPerStep": 4}})
    use = DataUse(trains_on_answers=True)
    table = load_prompts(spec, tokenizer, use).train
    answers = [table.record(row)["conversation"][-1]["content"] for row in range(len(table))]
    assert [text.rpartition("\n")[2] for text in tokenizer.decode(table.answers)] == answers
    assert table.answers_mask is not None and table.answers_mask.values.mean() < 0.9
    of_pairs = job({"builtin": "Calculations", "preferences": {}}, algorithm={"type": "DPO"})
    with pytest.raises(SeveralErrors, match=r"chosenField.*got chosen, allowed prompt, answer, co"):
        load_prompts(of_pairs, tokenizer, use)


def test_rounds_need_as_many_prompts_as_they_may_take(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    train = {"path": write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1"}] * 11)}
    assert load_prompts(job(train), tokenizer, DataUse(batches_per_step=2))
    with pytest.raises(DatasetTooSmall, match="= 4, 3 times, as flow.repeat.*at most 3"):
        load_prompts(job(train), tokenizer, DataUse(batches_per_step=3))


def test_an_evaluation_alone_reads_no_other_rows(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": "1"}] * 2)
    data = {"evaluation": {"path": rows}, "pretraining": {"path": "none.jsonl"}}
    spec = job({"path": "none.jsonl"}, data=data)
    prompts = load_prompts(spec, tokenizer, DataUse(trains=False))
    assert prompts.evaluation is not None and len(prompts.evaluation) == 2
    assert [*prompts.tables] == [Split.EVALUATION] and prompts.pretraining is None


def test_a_source_needs_the_rows_of_its_largest_batch() -> None:
    spec = job({"path": "rows.jsonl"}, schedule={"warmStart": {"promptsPerStep": 7}})
    assert rows_needed(spec, Split.TRAIN, DataUse()) == 7
    assert rows_needed(spec, Split.TRAIN, DataUse(batches_per_step=3)) == 12
    assert rows_needed(spec, Split.EVALUATION, DataUse()) == 1


@pytest.mark.parametrize(("column", "scores"), [("record", True), ("response_tokens", False)])
def test_steps_that_read_records_score_their_responses(column: str, scores: bool) -> None:
    """Whatever a warm start trains on."""
    columns = {
        GraphName.STEP: ("prompt_tokens", column),
        GraphName.WARM_START: ("prompt_tokens", "response_tokens"),
        GraphName.EVALUATION: ("prompt_tokens", "record"),
    }
    inputs = {name: GraphInputs(prompts=names) for name, names in columns.items()}
    use = DataUse.from_graphs(inputs, trains=True)
    assert (use.scores_training, use.trains_on_answers) == (scores, True)


def test_the_longest_prompt_is_named_by_its_row(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": text} for text in ("1", "", "123", "12", "321")]
    source = {"path": write_jsonl(tmp_path / "rows.jsonl", rows)}
    spec = job(source, data={"onInvalidRow": "Skip"})
    assert load_prompts(spec, tokenizer).train.longest_prompt() == (2, 3)


def test_files_of_a_pattern_are_one_source_in_the_order_of_their_names(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "3"}])
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1", "note": "x"}, {"prompt": "2"}])
    pyarrow.parquet.write_table(
        pyarrow.Table.from_pylist([{"prompt": "4"}]), tmp_path / "c.parquet"
    )
    table = load_prompts(job({"path": str(tmp_path / "[abc].*")}), tokenizer).train
    assert table.texts == ("1", "2", "3", "4")
    assert table.source_rows.tolist() == [0, 1, 2, 3]
    assert table.row_name(2) == f"row 0 of {tmp_path}/b.jsonl"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"prompt": ""}], r"1 rows .*: got row 0 of .*b\.jsonl: prompt is an empty text"),
        (
            [{"prompt": ""}, {"prompt": "1"}, {"prompt": " "}],
            r"got row 0 of .*b\.jsonl, row 2 of .*b\.jsonl: prompt is an empty text",
        ),
        ([{"prompt": "1" * 20}], r"got row 0 of .*b\.jsonl with 20 tokens"),
    ],
)
def test_a_row_of_several_files_is_named_by_its_file(
    tmp_path: Path, tokenizer: TextTokenizer, rows: list[dict[str, Any]], message: str
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": str(n)} for n in range(4)])
    write_jsonl(tmp_path / "b.jsonl", rows)
    spec = job({"path": str(tmp_path / "*.jsonl")}, rollout={"maxPromptTokens": 8})
    with pytest.raises(DataError, match=message):
        load_prompts(spec, tokenizer)


@pytest.mark.parametrize("name", ["b.jsonl", "b.json", "b.parquet"])
def test_files_without_a_column_that_others_have_are_refused_by_name(
    tmp_path: Path, tokenizer: TextTokenizer, name: str
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"q": "1", "r": {"a": 1}}] * 4)
    if name == "b.parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"p": "1"}]), tmp_path / name)
    else:
        write_jsonl(tmp_path / name, [{"p": "1"}])
    train = {"path": str(tmp_path / "*"), "promptField": "q", "answerField": "r.a"}
    with pytest.raises(SeveralErrors) as several:
        load_prompts(job(train), tokenizer)
    prompt, answer = several.value.errors
    assert str(prompt) == (
        f"data.train.promptField names a column that not all files of {tmp_path}/* have: got q, "
        f"which {tmp_path}/a.jsonl has and {tmp_path}/{name} lacks (columns: p), allowed a column "
        "of all files; write these files with the same columns, or name others by data.train.path"
    )
    assert isinstance(answer, MissingField) and "got r.a, which" in str(answer)


def test_files_of_a_list_without_a_column_are_refused_by_name(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1"}] * 4)
    write_jsonl(tmp_path / "b.jsonl", [{"p": "1"}])
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl")]
    expected = (
        r"not all files of data\.train\.paths have: got prompt, which .*/a\.jsonl has and "
        r".*/b\.jsonl lacks .* name others by data\.train\.paths$"
    )
    with pytest.raises(MissingField, match=expected):
        load_prompts(job({"paths": paths}), tokenizer)


def test_columns_that_nobody_reads_may_differ(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1", "note": "x"}] * 4)
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": "1", "source": "y"}])
    table = load_prompts(job({"path": str(tmp_path / "*.jsonl")}), tokenizer).train
    assert [list(table.record(row)) for row in (3, 4)] == [["prompt", "note"], ["prompt", "source"]]


def test_a_column_that_no_file_has_is_refused_with_those_there_are(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    for name in ("a.jsonl", "b.jsonl"):
        write_jsonl(tmp_path / name, [{"q": "1"}] * 4)
    with pytest.raises(MissingField, match="does not exist: got prompt, allowed q"):
        load_prompts(job({"path": str(tmp_path / "*.jsonl")}), tokenizer)


def test_files_beyond_max_rows_may_have_any_columns(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    write_jsonl(tmp_path / "a.jsonl", [{"prompt": "1"}] * 4)
    write_jsonl(tmp_path / "b.jsonl", [{"q": "1"}])
    train = {"path": str(tmp_path / "*.jsonl"), "maxRows": 4}
    assert len(load_prompts(job(train), tokenizer).train) == 4


def mixed(tmp_path: Path, **changes: Any) -> RLHFJobSpec:
    """A job of two sources: three rows of questions, and five of numbers."""
    write_jsonl(tmp_path / "a.jsonl", [{"question": f"{n}+", "solution": n} for n in range(3)])
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": f"{n}="} for n in range(5)])
    first = {"path": str(tmp_path / "a.jsonl"), "name": "sums", "promptField": "question"}
    sources = [{**first, "answerField": "solution"}, {"path": str(tmp_path / "b.jsonl")}]
    return job(
        {"sources": [{**source, **changes.pop("each", {})} for source in sources]}, **changes
    )


def test_rows_of_several_sources_follow_each_other(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    table = load_prompts(mixed(tmp_path), tokenizer).train
    assert table.texts == ("0+", "1+", "2+", "0=", "1=", "2=", "3=", "4=")
    assert (table.sources, table.sizes) == (("sums", "1"), (3, 5))
    assert [table.source_name(row) for row in (2, 3)] == ["sums", "1"]
    assert [table.row_name(row) for row in (2, 3)] == ["row 2 of source sums", "row 0 of source 1"]
    assert table.source_rows[:3].tolist() == [0, 1, 2]
    assert len(set(table.source_rows.tolist())) == 8
    assert tokenizer.decode(table.answers) == ["0", "1", "2", *[""] * 5]


def test_a_single_source_in_the_list_has_the_rows_of_one_without_list(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"q": str(n), "a": n} for n in range(5)])
    fields = {"path": path, "promptField": "q", "answerField": "a", "maxRows": 4}
    plain = load_prompts(job(fields), tokenizer).train
    listed = load_prompts(job({"sources": [fields]}), tokenizer).train
    assert (plain.texts, plain.records) == (listed.texts, listed.records)
    assert plain.source_rows.tolist() == listed.source_rows.tolist()
    assert (plain.sources, listed.sources) == ((), ("0",))


def test_fields_beside_sources_are_those_of_all_that_set_none(
    tmp_path: Path, chat_tokenizer: TextTokenizer
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"q": "1", "p": "2"}] * 4)
    sources = [
        {"path": rows, "maxRows": 2},
        {"path": rows, "promptField": "p", "systemPrompt": "be", "maxRows": 3},
        {"path": rows, "chatTemplate": "Never", "systemPrompt": None, "maxRows": 1},
    ]
    spec = job({"sources": sources, "promptField": "q"}, schedule={"promptsPerStep": 3})
    table = load_prompts(spec, chat_tokenizer).train
    assert table.texts[1:3] == ("<user>1<eos><assistant>", "<system>be<eos><user>2<eos><assistant>")
    assert table.texts[5] == "1" and table.sizes == (2, 3, 1)


def test_errors_name_the_source(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    write_jsonl(tmp_path / "b.jsonl", [{"prompt": ""}])
    (tmp_path / "c.jsonl").write_text("{")
    paths = [str(tmp_path / name) for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    with pytest.raises(SeveralErrors) as several:
        load_prompts(job({"sources": [{"path": path} for path in paths]}), tokenizer)
    missing, invalid, broken = several.value.errors
    assert str(missing).startswith("data.train.sources[0].path is not a file")
    assert missing.location == ("spec", "data", "train", "sources", 0, "path")
    assert "data.train.sources[1] (" in str(invalid) and "row 0: prompt is an empty" in str(invalid)
    assert "not valid JSON" in str(broken)


def test_a_source_needs_the_rows_of_its_share(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    assert load_prompts(mixed(tmp_path, schedule={"promptsPerStep": 6}), tokenizer)
    with pytest.raises(DatasetTooSmall) as caught:
        load_prompts(mixed(tmp_path, schedule={"promptsPerStep": 7}), tokenizer)
    assert str(caught.value) == (
        "data.train.sources[0] (sums) has fewer rows than a step takes of it: got 3 usable rows, "
        "allowed at least 4, its share of schedule.promptsPerStep = 7; add rows, lower its weight, "
        "or lower schedule.promptsPerStep"
    )
    assert caught.value.location == ("spec", "data", "train", "sources", 0, "weight")


def test_a_source_without_a_share_is_refused(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", [{"prompt": str(n)} for n in range(9)])
    sources = [{"path": rows, "weight": 1e6}, {"path": rows, "name": "few", "weight": 1e-9}]
    with pytest.raises(
        SourceUnused, match=r"sources\[1\] \(few\) would never be trained"
    ) as caught:
        load_prompts(job({"sources": sources}), tokenizer)
    assert caught.value.location == ("spec", "data", "train", "sources", 1, "weight")


def test_a_warm_start_names_the_source_without_answers(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    spec = mixed(tmp_path, schedule={"warmStart": {"promptsPerStep": 2}})
    with pytest.raises(MissingAnswer, match="got 5 of 8 rows .*the first is row 0 of source 1,"):
        load_prompts(spec, tokenizer)


def test_pairs_may_come_from_several_sources(tmp_path: Path, tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": f"{n}=", "chosen": str(n), "rejected": "9"} for n in range(4)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    spec = job({"sources": [{"path": path}, {"builtin": "SortDigits", "maxRows": 2}]})
    data = spec.data.train.model_copy(update={"preferences": PreferenceFields()})
    spec = spec.model_copy(update={"data": spec.data.model_copy(update={"train": data})})
    table = load_prompts(spec, tokenizer).train
    assert table.rejected is not None and len(table.rejected.runs()) == 6
    assert tokenizer.decode(table.answers)[:4] == ["0", "1", "2", "3"]


def test_held_out_prompts_may_come_from_several_sources(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    paths = [write_jsonl(tmp_path / f"{n}.jsonl", [{"prompt": f"{n}"}] * n) for n in (1, 2)]
    sources = [{"path": path, "name": f"set-{n}"} for n, path in enumerate(paths)]
    spec = job({"builtin": "SortDigits"}, data={"evaluation": {"sources": sources}})
    table = load_prompts(spec, tokenizer).evaluation
    assert table is not None
    assert (table.texts, table.sources) == (("1", "2", "2"), ("set-0", "set-1"))
