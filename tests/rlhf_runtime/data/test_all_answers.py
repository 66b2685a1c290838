"""Conversations of which all answers are trained on: tokens, masks, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlhf_runtime.data.errors import InvalidRow
from rlhf_runtime.data.prompt_table import join_tables
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.workers.data_host import batch_of

from ...depth import examples
from .conversation_rows import ALL, LAST, build, parts_of, runs, said, talk
from .small_tokenizers import SEPARATING, write_joining_tokenizer


def test_answers_and_their_end_tokens_are_trained_on_and_nothing_between(
    chat_tokenizer: TextTokenizer,
) -> None:
    rows = [{"messages": talk("1=", "a", "2=", "bc", "3=", "d")}]
    table = build(rows, chat_tokenizer)
    assert table.texts == ("<user>1=<eos><assistant>",)
    assert parts_of(chat_tokenizer, table.answers, table.answers_mask) == [
        (True, "a<eos>"),
        (False, "<user>2=<eos><assistant>"),
        (True, "bc<eos>"),
        (False, "<user>3=<eos><assistant>"),
        (True, "d<eos>"),
    ]
    assert table.record(0) == rows[0]


def weighted(*weights: Any) -> list[dict[str, Any]]:
    """A conversation whose answers have weights."""
    messages = talk(*(text for n in range(len(weights)) for text in (f"{n}=", "ab"[n % 2])))
    for message, weight in zip(messages[1::2], weights, strict=True):
        message["weight"] = weight
    return messages


def test_answers_of_weight_0_are_context(chat_tokenizer: TextTokenizer) -> None:
    table = build([{"messages": weighted(1, 0, 1.0, None, 0)}], chat_tokenizer, limit=99)
    between = "<user>{}=<eos><assistant>"
    assert parts_of(chat_tokenizer, table.answers, table.answers_mask) == [
        (True, "a<eos>"),
        (False, between.format(1) + "b<eos>" + between.format(2)),
        (True, "a<eos>"),
        (False, between.format(3)),
        (True, "b<eos>"),
        (False, between.format(4) + "a<eos>"),
    ]


@pytest.mark.parametrize(
    ("messages", "train_on", "message"),
    [
        (weighted(0, 0), ALL, "all answers of messages have weight 0; remove the row"),
        (weighted(1, 0), LAST, "messages ends with an answer of weight 0, so nothing"),
        (weighted(0.5, 1), ALL, "a message with weight 0.5; allowed 0 or 1"),
        (weighted(1, "1"), ALL, "a message with weight '1'; allowed 0 or 1"),
        (weighted(1, "no"), LAST, "a message with weight 'no'; allowed 0 or 1"),
        ([*talk("1="), said("assistant", "a", train=False)], ALL, "train, which is not read"),
        ([*talk("1="), said("assistant", "a", training=True)], LAST, "training, which is not"),
    ],
)
def test_weights_that_train_nothing_or_are_unknown_are_refused(
    chat_tokenizer: TextTokenizer, messages: list[dict[str, Any]], train_on: str, message: str
) -> None:
    with pytest.raises(InvalidRow, match=message):
        build([{"messages": messages}], chat_tokenizer, train_on)
    # Where nothing is trained on, answers are for verifiers.
    build([{"messages": weighted(1, 0)}], chat_tokenizer, LAST, limit=None)


@pytest.mark.parametrize("marks", [{"weight": 0}, {"train": False}])
@pytest.mark.parametrize(
    ("row", "source"),
    [
        (
            {"chosen": talk("1=", "a"), "rejected": talk("1=", "b")},
            {"preferences": {"chosenField": "chosen", "rejectedField": "rejected"}},
        ),
        ({"prompt": "1=", "answer": talk("1=", "a")[1:]}, {"answerField": "answer"}),
    ],
)
def test_a_single_answer_of_weight_0_is_refused_wherever_it_stands(
    chat_tokenizer: TextTokenizer,
    row: dict[str, Any],
    source: dict[str, Any],
    marks: dict[str, Any],
) -> None:
    source = {"promptField": "prompt", **source}
    build([row], chat_tokenizer, LAST, **source)
    for name, value in row.items():
        if isinstance(value, list):
            marked = {**row, name: [*value[:-1], {**value[-1], **marks}]}
            with pytest.raises(InvalidRow, match=rf"{name if 'weight' in marks else ''}.*weight"):
                build([marked], chat_tokenizer, LAST, **source)


def test_the_last_answer_alone_has_a_weight(chat_tokenizer: TextTokenizer) -> None:
    table = build([{"messages": weighted(0, 1)}], chat_tokenizer, LAST)
    assert chat_tokenizer.text_of(runs(table.answers)[0]) == "b<eos>"


@pytest.mark.parametrize(
    "row",
    [
        {"messages": talk("1=", "a")},
        {"messages": [said("system", "Be brief."), *talk("1=", "a")]},
        {"prompt": "1=", "answer": " 12 "},
        {"prompt": talk("1="), "answer": "12"},
    ],
)
def test_a_conversation_of_one_turn_is_the_same_under_both_settings(
    chat_tokenizer: TextTokenizer, row: dict[str, Any]
) -> None:
    fields = {} if "messages" in row else {"promptField": "prompt", "answerField": "answer"}
    tables = [build([row], chat_tokenizer, train_on, **fields) for train_on in (ALL, LAST)]
    every, last = tables
    assert every.texts == last.texts and every.records == last.records
    assert runs(every.prompts) == runs(last.prompts) and runs(every.answers) == runs(last.answers)
    assert every.answers.values.dtype == last.answers.values.dtype == np.int32
    assert last.answers_mask is None
    assert runs(every.answers_mask) == [[1] * len(run) for run in runs(last.answers)]


def test_an_answer_beside_a_conversation_is_its_last(chat_tokenizer: TextTokenizer) -> None:
    row = {"prompt": talk("1=", "a", "2="), "answer": "b"}
    table = build([row], chat_tokenizer, promptField="prompt", answerField="answer")
    same = build([{"messages": talk("1=", "a", "2=", "b")}], chat_tokenizer)
    assert runs(table.answers) == runs(same.answers)
    assert runs(table.answers_mask) == runs(same.answers_mask)


@pytest.mark.parametrize(
    ("answer", "train_on"), [(talk("2=", "b"), ALL), (talk("", "a", "2=", "b")[1:], LAST)]
)
def test_a_column_of_answers_begins_with_the_assistant_and_has_several_for_all_answers(
    chat_tokenizer: TextTokenizer, answer: list[dict[str, Any]], train_on: str
) -> None:
    row = {"prompt": talk("1="), "answer": answer}
    message = "one message of the assistant; with trainOn: AllAnswers also with several that begin"
    with pytest.raises(InvalidRow, match=message):
        build([row], chat_tokenizer, train_on, promptField="prompt", answerField="answer")


def test_prompt_and_answers_may_be_two_columns(chat_tokenizer: TextTokenizer) -> None:
    row = {"prompt": "1=", "answer": talk("", "a", "2=", "b")[1:]}
    table = build([row], chat_tokenizer, promptField="prompt", answerField="answer")
    same = build([{"messages": talk("1=", "a", "2=", "b")}], chat_tokenizer)
    assert table.texts == same.texts and runs(table.answers) == runs(same.answers)
    assert runs(table.answers_mask) == runs(same.answers_mask)


def test_texts_without_a_template_are_one_answer(tokenizer: TextTokenizer) -> None:
    row = {"prompt": "21=", "answer": "12"}
    fields = {"promptField": "prompt", "answerField": "answer"}
    every, last = (build([row], tokenizer, train_on, **fields) for train_on in (ALL, LAST))
    assert runs(every.answers) == runs(last.answers)
    assert runs(every.answers_mask) == [[1, 1, 1]]


# White space in front may join what the template writes before it.
CONTENTS = st.text("ab 12\n<>é", min_size=1, max_size=8).filter(lambda text: not text[0].isspace())


@pytest.fixture(scope="module", params=SEPARATING)
def joining_tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> TextTokenizer:
    """Tokenizers that join characters, each with a template that fits it."""
    folder: Path = tmp_path_factory.mktemp("tokenizer")
    write_joining_tokenizer(request.param, folder)
    return TextTokenizer(folder)


@given(contents=st.lists(CONTENTS, min_size=1, max_size=4), last=CONTENTS)
@settings(max_examples=examples(60))
def test_each_answer_is_trained_on_as_if_the_conversation_ended_with_it(
    joining_tokenizer: TextTokenizer, contents: list[str], last: str
) -> None:
    """The tokens up to an answer are those of a conversation of which it is the last answer."""
    contents = [*contents, last] if len(contents) % 2 else contents
    rows = [{"messages": talk(*contents[: end + 1])} for end in range(1, len(contents), 2)]
    every = build(rows[-1:], joining_tokenizer, limit=999)
    alone = build(rows, joining_tokenizer, LAST, limit=999)
    (prompt,), (response,), (mask,) = map(runs, (every.prompts, every.answers, every.answers_mask))
    whole, is_trained = [*prompt, *response], [*[0] * len(prompt), *mask]
    expected = [0] * len(whole)
    for before, answer in zip(runs(alone.prompts), runs(alone.answers), strict=True):
        end = len(before) + len(answer)
        assert whole[:end] == before + answer
        expected[len(before) : end] = [1] * len(answer)
    assert is_trained == expected


def test_an_answer_whose_first_characters_join_the_template_is_still_marked_exactly(
    tmp_path: Path,
) -> None:
    # The template ends prompts with a line break, and the tokenizer joins two of them.
    write_joining_tokenizer("bytes across words", tmp_path)
    tokenizer = TextTokenizer(tmp_path)
    joined, *others = runs(tokenizer.encode(["\n\n"], add_special_tokens=False))
    assert len(joined) == 1 and not others
    table = build([{"messages": talk("a", "\n1", "b", "\n2")}], tokenizer)
    parts = parts_of(tokenizer, table.answers, table.answers_mask)
    assert [text for is_trained, text in parts if is_trained] == ["\n1<end>", "\n2<end>"]


# Leaves out what precedes `]` in all answers but the last, as templates do with reasoning.
DROPPING = """\
{%- for m in messages %}
    {%- set keeps = loop.last or m.role != "assistant" %}
    {{- "<" + m.role + ">" + (m.content if keeps else m.content.split("]")[-1]) + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""
# Opens the last answer with an empty block, as Qwen3's does.
OPENING = """\
{%- for m in messages %}
    {{- "<" + m.role + ">" + ("[]" if loop.last and m.role == "assistant" else "") }}
    {{- m.content + eos_token }}
{%- endfor %}
{%- if add_generation_prompt %}{{ "<assistant>" }}{% endif %}"""


def with_template(tokenizer: TextTokenizer, text: str) -> TextTokenizer:
    (tokenizer.folder / "chat_template.jinja").write_text(text)
    return TextTokenizer(tokenizer.folder)


@pytest.mark.parametrize("template", [DROPPING, OPENING])
def test_a_template_that_changes_earlier_answers_is_refused(
    chat_tokenizer: TextTokenizer, template: str
) -> None:
    tokenizer = with_template(chat_tokenizer, template)
    row = {"messages": talk("1=", "[x]a", "2=", "b")}
    message = (
        "row 0: the chat template renders answer 1 of 2 in another way if messages follow: got .* "
        "set trainOn: LastAnswer"
    )
    with pytest.raises(InvalidRow, match=message):
        build([row], tokenizer)
    build([row], tokenizer, LAST)
    build([{"messages": talk("1=", "[x]a")}], tokenizer)


def test_an_answer_that_the_template_does_not_end_is_refused(chat_tokenizer: TextTokenizer) -> None:
    text = (
        "{% for m in messages %}{{ m.role[0] + '>' + m.content + ';' }}{% endfor %}"
        "{% if add_generation_prompt %}a>{% endif %}"
    )
    tokenizer = with_template(chat_tokenizer, text)
    with pytest.raises(InvalidRow, match="answer 1 of 2 .* instead of '<eos>'"):
        build([{"messages": talk("1=", "a", "2=", "b")}], tokenizer)
    assert len(build([{"messages": talk("1=", "a")}], tokenizer)) == 1


def test_an_end_token_that_joins_the_text_behind_it_is_refused(tmp_path: Path) -> None:
    write_joining_tokenizer("bytes across words", tmp_path)
    (tmp_path / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content + '\n' }}{% endfor %}"
    )
    (line,) = TextTokenizer(tmp_path).encode(["\n"], add_special_tokens=False).values.tolist()
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {line}}}')
    tokenizer = TextTokenizer(tmp_path)
    joined = tokenizer.encode(["\nab"], add_special_tokens=False).values
    assert len(joined) == 1, "an end token with the begin of a message"
    with pytest.raises(InvalidRow, match="joins the end token of an answer with the text behind"):
        build([{"messages": talk("2", "b", "ab", "b")}], tokenizer)
    assert len(build([{"messages": talk("2", "b", "1", "b")}], tokenizer)) == 1


def test_prompts_with_tools_that_are_only_answered_stay(chat_tokenizer: TextTokenizer) -> None:
    messages = [*talk("1=", "a"), said("tool", "3"), said("assistant", "b")]
    assert len(build([{"messages": messages}], chat_tokenizer, LAST, limit=None)) == 1


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        (talk("1=", "a", "2="), "is no conversation that ends with the assistant"),
        ([said("assistant", "hi"), *talk("1=", "a")], "begins with a message of the assistant"),
        (talk("1=", " ", "2=", "b"), "an answer of messages is an empty text"),
        (
            [*talk("1="), said("assistant", "a", reasoning_content="x"), *talk("2=", "b")],
            "has reasoning_content, which is not trained on",
        ),
    ],
)
def test_unusable_conversations_are_named_or_skipped(
    chat_tokenizer: TextTokenizer, messages: list[Any], why: str
) -> None:
    rows = [{"messages": talk("1=", "a", "2=", "b")}, {"messages": messages}]
    with pytest.raises(InvalidRow, match=f"row 1: .*{why}"):
        build(rows, chat_tokenizer)
    assert build(rows, chat_tokenizer, on_invalid="Skip").source_rows.tolist() == [0]


def test_the_limit_is_of_the_whole_response(chat_tokenizer: TextTokenizer) -> None:
    row = {"messages": talk("1=", "a", "2=", "b")}
    (response,) = runs(build([row], chat_tokenizer).answers)
    assert len(build([row], chat_tokenizer, limit=len(response))) == 1
    message = (
        f"a response of {len(response)} tokens from its first answer to the end token of its last "
        f"one, over {len(response) - 1}"
    )
    with pytest.raises(InvalidRow, match=message):
        build([row], chat_tokenizer, limit=len(response) - 1)
    assert len(build([row], chat_tokenizer, LAST, limit=2)) == 1


def test_pairs_share_messages_and_differ_in_answers(chat_tokenizer: TextTokenizer) -> None:
    shared = talk("1=", "a", "2=")
    row = {
        "chosen": [*shared, said("assistant", "b"), *talk("3=", "c")],
        "rejected": [*shared, said("assistant", "x")],
    }
    table = build([row], chat_tokenizer, preferences={})
    assert table.texts == ("<user>1=<eos><assistant>a<eos><user>2=<eos><assistant>",)
    assert parts_of(chat_tokenizer, table.answers, table.answers_mask) == [
        (True, "b<eos>"),
        (False, "<user>3=<eos><assistant>"),
        (True, "c<eos>"),
    ]
    assert parts_of(chat_tokenizer, table.rejected, table.rejected_mask) == [(True, "x<eos>")]


def test_pairs_of_one_last_answer_are_the_same_under_both_settings(
    chat_tokenizer: TextTokenizer,
) -> None:
    shared = talk("1=", "a", "2=")
    row = {"chosen": [*shared, said("assistant", "b")], "rejected": [*shared, *talk("", "c")[1:]]}
    every, last = (build([row], chat_tokenizer, on, preferences={}) for on in (ALL, LAST))
    for name in ("prompts", "answers", "rejected"):
        assert runs(getattr(every, name)) == runs(getattr(last, name))
    assert all(flag for run in runs(every.answers_mask) for flag in run)


@pytest.mark.parametrize(
    ("rest", "why"),
    [
        (talk("3=", "c"), "rejected goes on with messages of user, assistant after the shared"),
        ([said("assistant", "x"), said("user", "4=")], "rejected goes on with messages of assis"),
        ([said("assistant", "b")], "chosen and rejected are equal"),
    ],
)
def test_pairs_that_do_not_differ_in_answers_are_refused(
    chat_tokenizer: TextTokenizer, rest: list[Any], why: str
) -> None:
    shared = talk("1=", "a", "2=")
    row = {"chosen": [*shared, said("assistant", "b")], "rejected": [*shared, *rest]}
    with pytest.raises(InvalidRow, match=f"row 0: .*{why}"):
        build([row], chat_tokenizer, preferences={})


def test_several_sources_train_on_their_own_answers(chat_tokenizer: TextTokenizer) -> None:
    rows = [{"messages": talk("1=", "a", "2=", "b")}]
    tables = [build(rows, chat_tokenizer, train_on) for train_on in (LAST, ALL)]
    joined = join_tables(tables, ("last", "all"))
    assert runs(joined.answers) == runs(tables[0].answers) + runs(tables[1].answers)
    assert runs(joined.answers_mask) == [[1, 1]] + runs(tables[1].answers_mask)
    assert join_tables(tables[:1] * 2, ("one", "other")).answers_mask is None


def test_a_batch_has_the_masks_of_its_responses(chat_tokenizer: TextTokenizer) -> None:
    shared = talk("1=")
    rows = [
        {
            "chosen": [*shared, *talk("", "b", "3=", "c")[1:]],
            "rejected": [*shared, *talk("", end)[1:]],
        }
        for end in ("x", "yz")
    ]
    table = build(rows, chat_tokenizer, preferences={})
    shard = batch_of(table, np.array([1, 0]), ("response_mask", "response_tokens"))
    masks = [(runs(table.answers_mask)[row], runs(table.rejected_mask)[row]) for row in (1, 0)]
    assert runs(shard.columns["response_mask"]) == [mask for pair in masks for mask in pair]
    assert shard.columns["response_mask"].values.dtype == np.int8
    tokens = [(runs(table.answers)[row], runs(table.rejected)[row]) for row in (1, 0)]
    assert runs(shard.columns["response_tokens"]) == [run for pair in tokens for run in pair]
