from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic.alias_generators import to_camel
from tokenizers import processors
from transformers import AutoTokenizer

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt, PretrainingData
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data import rows as rows_module
from rlhf_runtime.data.character_tokenizer import TOKENS, build_tokenizer, write_tokenizer
from rlhf_runtime.data.errors import (
    ChatTemplateUnusable,
    DatasetTooSmall,
    EmptyDataset,
    InvalidRow,
    MissingAnswer,
    MissingField,
    PromptTooLong,
)
from rlhf_runtime.data.files import read_file
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import BatchLimit, build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.rows import CHUNK_ROWS
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.dataplane.columns import Column

from .small_tokenizers import END, write_base_tokenizer

NAN = float("nan")
MESSAGES = [{"role": "user", "content": "1=", "name": None}]


def build(
    rows: list[Any],
    tokenizer: TextTokenizer,
    on_invalid: str = "Fail",
    on_long: str = "Fail",
    max_tokens: int = 1000,
    limit: BatchLimit = iter,
    max_answer: int | None = None,
    **source: Any,
) -> PromptTable:
    policy = RowLimits(max_tokens, max_answer, OnInvalidRow(on_invalid), OnLongPrompt(on_long), 99)
    data = DataSource(path="rows.jsonl", **source)
    return build_prompt_table(rows, data, SourceSetting(Split.TRAIN), tokenizer, policy, limit)


def test_rows_become_token_ids_texts_records_and_answers(tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "21=", "answer": "12", "id": 7}, {"prompt": "3=", "answer": "3", "id": 8}]
    table = build(rows, tokenizer)
    assert table.texts == ("21=", "3=")
    assert [tokenizer.decode(column) for column in (table.prompts, table.answers)] == [
        ["21=", "3="],
        ["12", "3"],
    ]
    assert table.prompts.values.dtype == np.int32
    assert [run[-1] for run in table.answers.runs()] == [tokenizer.eos_token_id] * 2
    assert [table.record(index) for index in range(2)] == rows
    assert table.source_rows.tolist() == [0, 1]
    assert len(table) == table.rows_read == 2


def test_more_rows_than_a_chunk_keep_their_order(tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": str(index)} for index in range(2 * CHUNK_ROWS + 3)]
    rows[CHUNK_ROWS + 1] = {"prompt": ""}
    table = build(rows, tokenizer, on_invalid="Skip")
    kept = [index for index in range(len(rows)) if index != CHUNK_ROWS + 1]
    assert table.source_rows.tolist() == kept
    assert table.texts == tuple(map(str, kept))
    assert tokenizer.decode(table.prompts) == list(map(str, kept))


def test_long_rows_are_tokenized_few_at_a_time(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the same table: a tokenizer takes a hundred times as much memory as its texts."""
    rows = [{"prompt": "1" * (index % 7 + 1), "answer": "2"} for index in range(20)]
    rows[3]["prompt"] = ""
    whole = build(rows, tokenizer, on_invalid="Skip")
    at_once: list[int] = []
    encode = tokenizer.encode

    def counted(texts: Sequence[str], add_special_tokens: bool) -> Column:
        at_once.append(sum(map(len, texts)))
        return encode(texts, add_special_tokens)

    monkeypatch.setattr(tokenizer, "encode", counted)
    monkeypatch.setattr(rows_module, "BATCH_CHARACTERS", 10)
    table = build(rows, tokenizer, on_invalid="Skip")
    assert 0 < max(at_once) <= 10
    assert (table.texts, table.records, table.rows_read) == (whole.texts, whole.records, 20)
    assert table.source_rows.tolist() == whole.source_rows.tolist()
    for column, other in ((table.prompts, whole.prompts), (table.answers, whole.answers)):
        assert tokenizer.decode(column) == tokenizer.decode(other)


def test_columns_are_judged_by_rows_that_are_not_taken_too(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A column that few rows have is no mistake, wherever reading ends."""
    monkeypatch.setattr(rows_module, "BATCH_CHARACTERS", 1)
    rows = [{"prompt": "1="}, {"prompt": "2="}, {"prompt": "3=", "answer": "3"}]
    table = build(rows, tokenizer, limit=lambda batches: islice(batches, 1))
    assert table.texts == ("1=",) and table.rows_read == 1


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"other": "x"}, "no field prompt"),
        ({"prompt": None}, "prompt is null or missing"),
        ({"prompt": NAN}, "prompt is NaN"),
        ({"prompt": ""}, "prompt is an empty text"),
        ({"prompt": " \n"}, "prompt is an empty text"),
        ({"prompt": 3}, "prompt is of type int"),
        ({"prompt": "\ud800"}, "prompt is not valid Unicode"),
        ({"prompt": []}, "empty list of messages"),
        (
            {"prompt": [{"role": "user", "content": "1"}, {"role": "user", "content": " "}]},
            "prompt has an empty message of user before an answer",
        ),
        ({"prompt": [{"role": "user", "content": []}]}, "prompt has an empty message of user"),
        ({"prompt": [{"role": "user", "content": "\ud800"}]}, "content is not valid Unicode"),
        ({"prompt": ["hello"]}, "prompt holds a text instead of a message"),
        ({"prompt": ["\ud800"]}, "prompt holds not valid Unicode instead of a message"),
        ({"prompt": [{"role": "user", "content": 3}]}, "content is not a text"),
        ({"prompt": [{"from": "human", "value": "1"}]}, "entries from, value; allowed role and"),
        ({"prompt": {"subject": "1", "body": "2"}}, "prompt is a map; .* a dot: subject, body"),
        ({"prompt": "1", "odd": {1, 2}}, "odd holds"),
        ({"prompt": [{"role": "user", "content": None, "tool_calls": [1]}]}, "content is not a te"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "a part of type image"),
    ],
)
def test_unusable_rows_are_named_or_skipped(
    tokenizer: TextTokenizer, row: dict[str, Any], why: str
) -> None:
    rows = [{"prompt": "1"}, row, {"prompt": "2"}]
    with pytest.raises(InvalidRow, match=f"row 1: .*{why}.*onInvalidRow: Skip") as caught:
        build(rows, tokenizer)
    assert (caught.value.reason, int(caught.value.exit_code)) == ("InvalidRow", 3)
    table = build(rows, tokenizer, on_invalid="Skip")
    assert table.source_rows.tolist() == [0, 2]
    assert (table.rows_read, table.rows_invalid, table.rows_too_long) == (3, 1, 0)


def test_only_the_first_unusable_rows_are_named(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidRow, match=r"has 9 rows.*rows 0, 1, 2, 3, 4 and 4 more: prompt is"):
        build([{"prompt": None}] * 9, tokenizer)
    faults = [None, 1, 1.5, True, {}, b"", ""]
    named = r"got row 0: .*, rows 1, 7: prompt is of type int, .*, row 4: .* and 2 more; allowed"
    with pytest.raises(InvalidRow, match=named):
        build([{"prompt": fault} for fault in [*faults, 2]], tokenizer)


def test_a_problem_of_all_rows_is_not_sought_in_the_rows(chat_tokenizer: TextTokenizer) -> None:
    refusing = "{{ raise_exception('no system') if messages[0].role == 'system' }}"
    (chat_tokenizer.folder / "chat_template.jinja").write_text(refusing)
    rows, tokenizer = [{"prompt": "1="}] * 7, TextTokenizer(chat_tokenizer.folder)
    with pytest.raises(InvalidRow) as caught:
        build(rows, tokenizer, system_prompt="sort")
    text = str(caught.value)
    assert "has 7 rows" in text and "no system" in text and "Skip" not in text
    assert "change the template, the settings of data or the rows" in text


def test_long_prompts_are_named_or_skipped(tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "1" * length} for length in (3, 4, 5, 9)]
    with pytest.raises(PromptTooLong) as caught:
        build(rows, tokenizer, max_tokens=4)
    text = str(caught.value)
    assert "row 2 with 5 tokens, row 3 with 9 tokens" in text
    assert "rollout.maxPromptTokens = 4" in text
    assert "onLongPrompt: Skip" in text
    table = build(rows, tokenizer, on_long="Skip", max_tokens=4)
    assert table.source_rows.tolist() == [0, 1]
    assert (table.rows_invalid, table.rows_too_long) == (0, 2)


@pytest.mark.parametrize("field", ["prompt_field", "answer_field"])
def test_a_missing_column_is_named_with_those_that_exist(
    tokenizer: TextTokenizer, field: str
) -> None:
    rows = [{"prompt": "1", "answer": "2"}]
    with pytest.raises(MissingField, match="got question, allowed prompt, answer"):
        build(rows, tokenizer, **{field: "question"})


def test_no_rows_are_an_error(tokenizer: TextTokenizer) -> None:
    with pytest.raises(EmptyDataset, match="got 0 rows"):
        build([], tokenizer)
    with pytest.raises(EmptyDataset, match="got 2 rows, 2 of them invalid"):
        build([{"prompt": ""}] * 2, tokenizer, on_invalid="Skip")


def test_fewer_rows_than_a_step_needs_are_an_error(tokenizer: TextTokenizer) -> None:
    table = build([{"prompt": "1"}, {"prompt": ""}], tokenizer, on_invalid="Skip")
    table.require_rows(1, "schedule.promptsPerStep")
    with pytest.raises(DatasetTooSmall) as caught:
        table.require_rows(2, "schedule.promptsPerStep")
    assert caught.value.reason == "DatasetTooSmall"
    assert "got 1 usable rows (1 of 2 rows were skipped)" in str(caught.value)
    assert "schedule.promptsPerStep = 2" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        *(("12", "12"), (12, "12"), (12.0, "12"), (0.5, "0.5"), (-3, "-3")),
        *((["12", "13"], "12"), ([4.0], "4"), (10**400, "1" + "0" * 400)),
        ([{"role": "assistant", "content": "21"}], "21"),
        ([{"role": "assistant", "content": [{"type": "text", "text": "21"}]}], "21"),
    ],
)
def test_answers_may_be_numbers_lists_and_messages(
    tokenizer: TextTokenizer, answer: object, text: str
) -> None:
    table = build([{"prompt": "1", "answer": answer}], tokenizer)
    assert tokenizer.decode(table.answers) == [text]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (None, "answer is null or missing"),
        ("", "answer is an empty text"),
        ([], "answer is an empty list"),
        ([None], "answer is a list whose entry 0 is null or missing"),
        (["1", NAN], "answer is a list whose entry 1 is NaN"),
        ([["1"]], "answer is a list whose entry 0 is of type list"),
        ({"text": "1"}, "answer is a map"),
        (True, "answer is of type bool"),
    ],
)
def test_an_answer_is_needed_only_where_it_is_asked_for(
    tokenizer: TextTokenizer, answer: object, why: str
) -> None:
    rows = [{"prompt": "1", "answer": "1"}, {"prompt": "2", "answer": answer}]
    table = build(rows, tokenizer)
    assert table.answers.lengths is not None
    assert table.answers.lengths.tolist() == [2, 0]
    with pytest.raises(MissingAnswer, match="1 of 2 rows without one, the first is row 1"):
        table.require_answers()
    with pytest.raises(InvalidRow, match=f"row 1: {why}"):
        build(rows, tokenizer, answer_field="answer")


def test_fields_stand_in_maps(tokenizer: TextTokenizer) -> None:
    rows = [{"task": {"text": "1+1="}, "reward": {"truth": {"value": 2.0}}, "reward.truth": "no"}]
    fields = {"prompt_field": "task.text", "answer_field": "reward.truth.value"}
    table = build(rows, tokenizer, **fields)
    assert (table.texts, tokenizer.decode(table.answers)) == (("1+1=",), ["2"])
    with pytest.raises(MissingField, match=r"got task\.other, allowed task, reward"):
        build(rows, tokenizer, prompt_field="task.other")


def test_columns_that_nobody_reads_do_no_harm(tokenizer: TextTokenizer) -> None:
    row = {"prompt": "1", "score": NAN, "deep": {"list": [1.0, float("inf")]}, "image": b"png"}
    assert build([row], tokenizer).record(0) == {
        "prompt": "1",
        "score": None,
        "deep": {"list": [1.0, None]},
        "image": "cG5n",
    }


def test_records_keep_dates_and_decimals_as_text(tokenizer: TextTokenizer) -> None:
    row = {"prompt": "1", "day": datetime.date(2024, 1, 2), "cost": Decimal("1.50"), "none": None}
    assert build([row], tokenizer).record(0) == {
        "prompt": "1",
        "day": "2024-01-02",
        "cost": "1.50",
        "none": None,
    }


def test_chat_templates_are_used_where_there_is_one(chat_tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": "1="}, {"prompt": MESSAGES}]
    assert build(rows, chat_tokenizer).texts == ("<user>1=<eos><assistant>",) * 2
    assert build(rows, chat_tokenizer, chat_template="Always").texts[0].startswith("<user>")
    assert build(rows[:1], chat_tokenizer, chat_template="Never").texts == ("1=",)


def test_special_tokens_in_a_template_are_single_tokens(chat_tokenizer: TextTokenizer) -> None:
    table = build([{"prompt": "1="}], chat_tokenizer)
    assert table.prompts.lengths is not None
    assert table.prompts.lengths.tolist() == [len("<user>1=") + 1 + len("<assistant>")]


def test_a_system_prompt_comes_first(chat_tokenizer: TextTokenizer) -> None:
    table = build([{"prompt": "1="}, {"prompt": MESSAGES}], chat_tokenizer, system_prompt="sort")
    assert table.texts == ("<system>sort<eos><user>1=<eos><assistant>",) * 2


def test_two_system_prompts_are_refused(chat_tokenizer: TextTokenizer) -> None:
    rows = [{"prompt": [{"role": "system", "content": "a"}, *MESSAGES]}]
    assert build(rows, chat_tokenizer).texts[0].startswith("<system>a")
    with pytest.raises(InvalidRow, match="own system message"):
        build(rows, chat_tokenizer, system_prompt="sort")


def test_a_conversation_that_ends_with_the_assistant_has_its_answer(
    chat_tokenizer: TextTokenizer,
) -> None:
    user, parts = {"role": "user", "content": "1="}, [{"type": "text", "text": "1"}] * 2
    last = {"role": "assistant", "content": "7"}
    rows = [
        {"prompt": [user, last]},
        {"prompt": [user, last], "answer": "8"},
        {"prompt": [user]},
        {"prompt": [{**user, "content": parts}, {**last, "content": parts}]},
        {"prompt": [last]},
    ]
    table = build(rows, chat_tokenizer)
    alone = build([{"prompt": "1="}, {"prompt": "11"}], chat_tokenizer).texts
    assert table.texts[:4] == (alone[0],) * 3 + (alone[1],)
    assert chat_tokenizer.decode(table.answers) == ["7", "8", "", "11", ""]


TURNS = (
    "{% for m in messages %}{{ m.role[0] + '>' + OPENED + m.content | trim + ';\n' }}{% endfor %}"
)
GENERATION = "{% if add_generation_prompt %}a>BEGUN{% endif %}"


def with_template(tokenizer: TextTokenizer, opened: str, begun: str) -> TextTokenizer:
    """The character tokenizer whose template ends turns with `;` and begins answers in some way."""
    opened = f"('{opened}' if m.role == 'assistant' else '')"
    text = TURNS.replace("OPENED", opened) + GENERATION.replace("BEGUN", begun)
    (tokenizer.folder / "chat_template.jinja").write_text(text)
    (tokenizer.folder / "generation_config.json").write_text('{"eos_token_id": [1, 54]}')
    return TextTokenizer(tokenizer.folder)


@pytest.mark.parametrize(
    ("opened", "begun", "prompt", "answer"),
    [
        ("", "", "u>1=;\na>", "12;"),
        ("[]", "", "u>1=;\na>", "[]12;"),
        ("[]", "[", "u>1=;\na>[", "]12;"),
        ("[]", "[]", "u>1=;\na>[]", "12;"),
    ],
)
def test_prompt_and_answer_are_the_rendered_conversation_up_to_its_end_token(
    chat_tokenizer: TextTokenizer, opened: str, begun: str, prompt: str, answer: str
) -> None:
    tokenizer = with_template(chat_tokenizer, opened, begun)
    rows = [{"prompt": "1=", "answer": " 12"}, {"prompt": "1="}]
    table = build(rows, tokenizer, max_answer=9)
    assert table.texts == (prompt, prompt)
    trained, nothing = (run.tolist() for run in table.answers.runs())
    shown = tokenizer.encode([answer], add_special_tokens=False).runs()
    assert trained == next(iter(shown)).tolist() and trained[-1] == 54
    assert nothing == []


@pytest.mark.parametrize("answer", ["e", "o", "s", ">", "eos", "1", "=", "a>", ";", "u>1="])
def test_answers_may_be_parts_of_the_template(chat_tokenizer: TextTokenizer, answer: str) -> None:
    (chat_tokenizer.folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    tokenizer = TextTokenizer(chat_tokenizer.folder)
    table = build([{"prompt": "1=", "answer": answer}], tokenizer, max_answer=9)
    (trained,) = table.answers.runs()
    (expected,) = tokenizer.encode([f"{answer}<eos>"], add_special_tokens=False).runs()
    assert trained.tolist() == expected.tolist()


def test_what_a_template_leaves_out_of_an_answer_is_refused(chat_tokenizer: TextTokenizer) -> None:
    text = "{{ messages[0].content }}a>{% if messages[1] %}{{ messages[1].content.split(']')[-1] }}"
    (chat_tokenizer.folder / "chat_template.jinja").write_text(text + "<eos>{% endif %}")
    tokenizer = TextTokenizer(chat_tokenizer.folder)
    assert tokenizer.decode(
        build([{"prompt": "1=", "answer": "12"}], tokenizer, max_answer=9).answers
    ) == ["12"]
    with pytest.raises(InvalidRow, match="leaves out a part of the answer: got '12'"):
        build([{"prompt": "1=", "answer": "[x]12"}], tokenizer, max_answer=9)


@pytest.mark.parametrize("part", ["reasoning_content", "function_call"])
def test_parts_of_an_answer_that_are_not_trained_on_are_refused(
    chat_tokenizer: TextTokenizer, part: str
) -> None:
    last = {"role": "assistant", "content": "7", part: ["x"]}
    rows = [{"prompt": [MESSAGES[0], last]}, {"prompt": "1=", "answer": [last]}]
    for row in rows:
        with pytest.raises(InvalidRow, match=f"a message that has {part}, which is not trained"):
            build([row], chat_tokenizer, answer_field="answer" if "answer" in row else None)
    build([{"prompt": [{**last, "role": "user"}]}], chat_tokenizer)  # templates may render it


def test_a_prompt_that_an_answer_changes_is_refused(chat_tokenizer: TextTokenizer) -> None:
    tokenizer = with_template(chat_tokenizer, "", "[]")
    row = {"prompt": "1=", "answer": "12"}
    with pytest.raises(InvalidRow, match="row 0: the chat template renders prompt in another way"):
        build([row], tokenizer, max_answer=9)
    build([row], tokenizer)  # nothing is trained on its answers


WITHOUT_THINKING = """\
{%- set opened = "a>" + ("[]" if enable_thinking is defined and not enable_thinking else "") %}
{%- for m in messages %}
    {{- (opened if m.role == "assistant" else "") + m.content + ";" }}
{%- endfor %}
{%- if add_generation_prompt %}{{ opened }}{% endif %}"""


def test_arguments_of_the_template_come_from_the_source_and_the_row(
    chat_tokenizer: TextTokenizer,
) -> None:
    tokenizer = with_template(chat_tokenizer, "", "")
    (tokenizer.folder / "chat_template.jinja").write_text(WITHOUT_THINKING)
    tokenizer = TextTokenizer(tokenizer.folder)
    (plain,) = build([{"prompt": "1="}], tokenizer).texts
    settings = {"chat_template_arguments": {"enable_thinking": False}}
    (changed,) = build([{"prompt": "1="}], tokenizer, **settings).texts
    assert changed != plain and changed.replace("[]", "") == plain
    rows = [
        {"prompt": "1=", "variables": variables}
        for variables in ({"enable_thinking": True}, {"enable_thinking": None}, None)
    ]
    field = {"chat_template_arguments_field": "variables"}
    assert build(rows, tokenizer, **settings, **field).texts == (plain, changed, changed)
    answered = [{**row, "answer": "2"} for row in rows]
    table = build(answered, tokenizer, max_answer=9, **settings, **field)
    assert tokenizer.decode(table.answers) == ["2", "2", "2"]


@pytest.mark.parametrize(
    "variables", ["no map", ["no map"], {"messages": []}, {"eos_token": "x"}, {1: "x"}]
)
def test_unusable_arguments_of_a_row_are_named(
    chat_tokenizer: TextTokenizer, variables: object
) -> None:
    row = {"prompt": "1=", "variables": variables}
    with pytest.raises(InvalidRow, match="allowed a map of variables for the chat template"):
        build([row], chat_tokenizer, chat_template_arguments_field="variables")


@pytest.mark.parametrize(
    ("size", "problem"),
    [(0, "refuses prompt: integer division"), (10**9, "refuses prompt: Range too big")],
)
def test_a_row_on_which_the_template_fails_is_named(
    chat_tokenizer: TextTokenizer, size: int, problem: str
) -> None:
    tokenizer = with_template(chat_tokenizer, "", "")
    (tokenizer.folder / "chat_template.jinja").write_text("{{ range(size) }}{{ 1 // size }}")
    rows = [{"prompt": "1=", "variables": {"size": size}}]
    with pytest.raises(InvalidRow, match=problem):
        build(rows, TextTokenizer(tokenizer.folder), chat_template_arguments_field="variables")


def test_arguments_that_are_no_valid_text_are_named(chat_tokenizer: TextTokenizer) -> None:
    tokenizer = with_template(chat_tokenizer, "", "")
    (tokenizer.folder / "chat_template.jinja").write_text("{{ style }}")
    rows = [{"prompt": "1=", "variables": {"style": "\ud800"}}]
    with pytest.raises(InvalidRow, match="rendered by the chat template, is not valid Unicode"):
        build(rows, TextTokenizer(tokenizer.folder), chat_template_arguments_field="variables")


@pytest.mark.parametrize(
    "settings",
    [
        {"chat_template_arguments": {"style": "x"}},
        {"chat_template_arguments_field": "variables"},
    ],
)
def test_arguments_need_a_template(tokenizer: TextTokenizer, settings: dict[str, Any]) -> None:
    (setting,) = settings
    with pytest.raises(ChatTemplateUnusable, match=f"{to_camel(setting)} is set"):
        build([{"prompt": "1=", "variables": {}}], tokenizer, **settings)


def test_the_column_of_arguments_must_exist(chat_tokenizer: TextTokenizer) -> None:
    with pytest.raises(MissingField, match="chatTemplateArgumentsField names a column"):
        build([{"prompt": "1="}], chat_tokenizer, chat_template_arguments_field="variables")


def test_an_answer_without_end_token_in_the_template_is_closed(
    chat_tokenizer: TextTokenizer,
) -> None:
    tokenizer = with_template(chat_tokenizer, "", "")
    (tokenizer.folder / "generation_config.json").unlink()
    table = build([{"prompt": "1=", "answer": "12"}], TextTokenizer(tokenizer.folder), max_answer=9)
    (trained,) = table.answers.runs()
    assert tokenizer.decode(table.answers) == ["12"] and trained[-1] == 1


@pytest.mark.parametrize("answer", ["12", "<eos>", "1<end>2"])
def test_an_answer_is_closed_with_the_special_token_that_the_template_writes(
    tmp_path: Path, answer: str
) -> None:
    write_base_tokenizer(tmp_path)
    tokenizer = TextTokenizer(tmp_path)
    table = build([{"prompt": "1=", "answer": answer}], tokenizer, max_answer=9)
    (prompt,), (trained,) = table.prompts.runs(), table.answers.runs()
    assert tokenizer.text_of(trained.tolist()) == f"{answer}<end>" and trained[-1] == END
    messages = [{"role": "user", "content": "1="}, {"role": "assistant", "content": answer}]
    whole = AutoTokenizer.from_pretrained(tmp_path).apply_chat_template(messages, return_dict=False)
    line = TOKENS.index("\n")
    assert [*prompt.tolist(), *trained.tolist(), line] == whole


def test_an_answer_of_five_thousand_digits_is_trained_on_and_recorded(
    tmp_path: Path, tokenizer: TextTokenizer
) -> None:
    digits = "1234567890" * 500
    (tmp_path / "rows.jsonl").write_text(f'{{"prompt": "1=", "answer": {digits}}}\n')
    rows = list(read_file(tmp_path / "rows.jsonl", "data.train.path"))
    table = build(rows, tokenizer, max_answer=5001, answer_field="answer")
    assert tokenizer.decode(table.answers) == [digits]
    assert table.record(0) == {"prompt": "1=", "answer": digits}


def test_whole_texts_are_closed_once_if_the_tokenizer_appends_an_end_token(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    closing = build_tokenizer()
    closing.post_processor = processors.TemplateProcessing(
        single="<unk> $A <eos>", special_tokens=[("<unk>", 2), ("<eos>", 1)]
    )
    closing.save(str(tmp_path / "tokenizer.json"))
    limits = RowLimits(99, None, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 99)
    source, setting = PretrainingData(path="rows.jsonl"), SourceSetting(Split.TRAIN)
    table = build_prompt_table([{"text": "10="}], source, setting, TextTokenizer(tmp_path), limits)
    (prompt,), (rest,) = table.prompts.runs(), table.answers.runs()
    assert [*prompt.tolist(), *rest.tolist()] == [2, 4, 3, 40, 1]


def test_the_column_of_conversations_may_be_named_for_their_answers(
    chat_tokenizer: TextTokenizer,
) -> None:
    fields = {"prompt_field": "messages", "answer_field": "messages"}
    user, last = {"role": "user", "content": "1="}, {"role": "assistant", "content": "7"}
    table = build([{"messages": [user, last], "answer": "8"}], chat_tokenizer, **fields)
    assert chat_tokenizer.decode(table.answers) == ["7"]
    for wrong in ([user], [last], "1=", [last, user]):
        with pytest.raises(InvalidRow, match="is no conversation that ends with the assistant"):
            build([{"messages": wrong}], chat_tokenizer, **fields)


def test_messages_in_a_text_are_refused_where_there_is_a_template(
    tokenizer: TextTokenizer, chat_tokenizer: TextTokenizer
) -> None:
    text = json.dumps([{"role": "user", "content": "1="}, {"role": "assistant", "content": "7"}])
    for answer_field in (None, "prompt"):
        with pytest.raises(InvalidRow, match="prompt is a text that holds a list of messages"):
            build([{"prompt": text}], chat_tokenizer, answer_field=answer_field)
    assert build([{"prompt": text}], tokenizer).texts == (text,)


def test_columns_that_do_not_exist_are_refused_with_the_entries_of_their_map(
    tokenizer: TextTokenizer,
) -> None:
    rows = [{"id": 1, "ticket": {"subject": "1"}}, {"id": 2, "ticket": {"body": "2"}}]
    with pytest.raises(MissingField, match=r"allowed id, ticket, ticket.subject, ticket.body; "):
        build(rows, tokenizer, prompt_field="ticket.subjct")


def test_messages_that_the_template_refuses_are_unusable_rows(
    chat_tokenizer: TextTokenizer,
) -> None:
    with pytest.raises(InvalidRow, match="row 0: .*critic is not a role"):
        build([{"prompt": [{"role": "critic", "content": "1"}]}], chat_tokenizer)


@pytest.mark.parametrize(
    ("row", "source"),
    [
        ({"prompt": MESSAGES}, {}),
        ({"prompt": "1"}, {"chat_template": "Always"}),
        ({"prompt": "1"}, {"system_prompt": "sort"}),
    ],
    ids=["messages", "always", "system prompt"],
)
def test_a_missing_chat_template_is_an_error_of_its_own(
    tokenizer: TextTokenizer, row: dict[str, Any], source: dict[str, Any]
) -> None:
    with pytest.raises(ChatTemplateUnusable, match=r"data\.train needs a chat template"):
        build([row], tokenizer, **source)


def test_a_system_prompt_without_template_is_an_error(chat_tokenizer: TextTokenizer) -> None:
    with pytest.raises(ChatTemplateUnusable, match="systemPrompt is set"):
        build([{"prompt": "1"}], chat_tokenizer, system_prompt="sort", chat_template="Never")


def test_messages_are_no_text_without_a_template(chat_tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidRow, match="row 0: prompt is of type list"):
        build([{"prompt": MESSAGES}], chat_tokenizer, chat_template="Never")
