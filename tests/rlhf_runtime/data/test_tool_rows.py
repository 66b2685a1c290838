"""Rows with calls of tools: what is trained on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlhf_runtime.data.errors import InvalidRow
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.environments.settings import ClassFacts, EnvironmentDescription, ToolFacts

from .conversation_rows import LAST, build, runs, said
from .tool_rows import COLUMNS, SCHEMAS, TEMPLATE, answer, call, calling, tokenizer_with, trained


@pytest.fixture
def tool_tokenizer(tmp_path: Path) -> TextTokenizer:
    """The character tokenizer with a chat template that writes calls of tools."""
    return tokenizer_with(TEMPLATE, tmp_path / "tools")


ADD, MULTIPLY = call("add", a=4, b=8), call("mul", a=12, b=2)
SOLVED = [
    said("user", "(4+8)*2="),
    calling(ADD, content="sum"),
    answer("12"),
    calling(MULTIPLY),
    answer("24"),
    said("assistant", "24"),
]
PARTS = [
    (True, "sum\nadd(a=4,b=8)<eos>"),
    (False, "<tool>12<eos><assistant>"),
    (True, "\nmul(a=12,b=2)<eos>"),
    (False, "<tool>24<eos><assistant>"),
    (True, "24<eos>"),
]


def test_what_the_assistant_writes_is_trained_on_and_what_tools_answer_is_not(
    tool_tokenizer: TextTokenizer,
) -> None:
    table = build([{"messages": SOLVED}], tool_tokenizer, limit=99)
    assert table.texts == ("<user>(4+8)*2=<eos><assistant>",)
    assert trained(table, tool_tokenizer) == PARTS


def test_prompt_and_conversation_may_be_two_columns(tool_tokenizer: TextTokenizer) -> None:
    row = {"prompt": SOLVED[0]["content"], "answer": SOLVED[1:]}
    table = build([row], tool_tokenizer, limit=99, **COLUMNS)
    assert table.texts == ("<user>(4+8)*2=<eos><assistant>",)
    assert trained(table, tool_tokenizer) == PARTS


def test_a_calling_message_of_weight_0_is_context(tool_tokenizer: TextTokenizer) -> None:
    first = {**SOLVED[1], "weight": 0}
    table = build([{"messages": [SOLVED[0], first, *SOLVED[2:]]}], tool_tokenizer, limit=99)
    between = "".join(text for _, text in PARTS[:2])
    assert trained(table, tool_tokenizer) == [(False, between), *PARTS[2:]]


def test_the_last_answer_is_trained_on_behind_calls_and_may_itself_be_one(
    tool_tokenizer: TextTokenizer,
) -> None:
    for end in (2, 4, 6):
        table = build([{"messages": SOLVED[:end]}], tool_tokenizer, LAST, limit=99)
        before = "".join(text for _, text in PARTS[: end - 2])
        assert table.texts == (f"<user>(4+8)*2=<eos><assistant>{before}",)
        (tokens,) = runs(table.answers)
        assert tool_tokenizer.text_of(tokens) == PARTS[end - 2][1]


def test_several_calls_of_a_turn_are_answered_by_their_ids(tmp_path: Path) -> None:
    template = TEMPLATE.replace('"<" + m.role', '"<" + m.role + (m.tool_call_id or "")')
    template = template.replace('c.function.name + "("', 'c.function.name + c.id + "("')
    tokenizer = tokenizer_with(template, tmp_path)
    calls = [call("add", "call_abc", a=1, b=1), call("mul", "12345678x", a=2, b=3)]
    messages = [
        said("user", "1="),
        calling(*calls),
        answer("6", tool_call_id="12345678x"),
        answer("2", tool_call_id="call_abc"),
        said("assistant", "8"),
    ]
    # An id that models write stays; others are those of generated conversations.
    expected = [
        (True, "\naddcall00000(a=1,b=1)\nmul12345678x(a=2,b=3)<eos>"),
        (False, "<tool12345678x>6<eos><toolcall00000>2<eos><assistant>"),
        (True, "8<eos>"),
    ]
    assert trained(build([{"messages": messages}], tokenizer, limit=99), tokenizer) == expected
    for message in messages:
        message.pop("tool_call_id", None)
    calls[1]["id"] = None
    expected[0] = (True, "\naddcall00000(a=1,b=1)\nmulcall00001(a=2,b=3)<eos>")
    expected[1] = (False, "<toolcall00000>6<eos><toolcall00001>2<eos><assistant>")
    assert trained(build([{"messages": messages}], tokenizer, limit=99), tokenizer) == expected


def changed(**function: Any) -> list[dict[str, Any]]:
    """The conversation with another first call."""
    made = {"type": "function", "function": {**ADD["function"], **function}}
    return [SOLVED[0], calling(made, content="sum"), *SOLVED[2:]]


@pytest.mark.parametrize(
    "messages",
    [
        changed(arguments='{"a": 4, "b": 8}'),
        changed(arguments={"a": 4, "b": 8, "of_other_rows": None}),
        [SOLVED[0], {**calling(ADD["function"], content="sum"), "refusal": None}, *SOLVED[2:]],
        [*SOLVED[:5], {**SOLVED[5], "tool_calls": []}],
        [*SOLVED[:3], {"role": "assistant", "tool_calls": [MULTIPLY]}, *SOLVED[4:]],
    ],
    ids=["JSON", "null", "without its type", "no calls", "no content"],
)
def test_other_forms_of_calls_are_the_same(
    tool_tokenizer: TextTokenizer, messages: list[Any]
) -> None:
    table = build([{"messages": messages}], tool_tokenizer, limit=99)
    assert trained(table, tool_tokenizer) == PARTS


def test_a_template_that_appends_arguments_to_a_text_gets_a_text(tmp_path: Path) -> None:
    call_of = '{{- "\\n" + c.function.name + "(" + ARGUMENTS + ")" + eos_token }}'
    template = (
        "{% for m in messages %}{{ '<' + m.role + '>' }}"
        "{% if m.tool_calls %}{% for c in m.tool_calls %}" + call_of + "{% endfor %}"
        "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
    )
    tokenizer = tokenizer_with(template, tmp_path)
    messages = [SOLVED[0], calling(call("add", a=[4], b="x")), *SOLVED[2:3], SOLVED[5]]
    table = build([{"messages": messages}], tokenizer, limit=99)
    # The tokenizer has no braces.
    assert trained(table, tokenizer)[0] == (True, '\nadd(<unk>"a": [4], "b": "x"<unk>)<eos>')


@pytest.mark.parametrize(
    "tools", [SCHEMAS, list(map(json.dumps, SCHEMAS)), json.dumps(SCHEMAS)], ids=type
)
def test_the_template_gets_the_tools_of_the_row(tool_tokenizer: TextTokenizer, tools: Any) -> None:
    rows: list[dict[str, Any]] = [
        {"messages": SOLVED, "tools": tools},
        {"messages": SOLVED, "tools": None},
        {"messages": SOLVED, "tools": []},
    ]
    table = build(rows, tool_tokenizer, limit=99)
    prompt = "<user>(4+8)*2=<eos><assistant>"
    assert table.texts == (f"<tools>add;mul;{prompt}", prompt, prompt)
    assert trained(table, tool_tokenizer) == PARTS


def test_rows_with_tools_pass_through_the_template_for_tools(tool_tokenizer: TextTokenizer) -> None:
    folder = tool_tokenizer.folder / "additional_chat_templates"
    folder.mkdir()
    (tool_tokenizer.folder / "chat_template.jinja").rename(folder / "tool_use.jinja")
    plain = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    (tool_tokenizer.folder / "chat_template.jinja").write_text(plain)
    rows = [{"messages": SOLVED, "tools": SCHEMAS}, {"messages": SOLVED[::5], "tools": None}]
    table = build(rows, TextTokenizer(tool_tokenizer.folder), limit=99)
    assert table.texts == ("<tools>add;mul;<user>(4+8)*2=<eos><assistant>", "(4+8)*2=<eos>")
    assert trained(table, tool_tokenizer) == PARTS


def test_the_tools_of_the_environment_are_those_of_all_rows(tool_tokenizer: TextTokenizer) -> None:
    add = ToolFacts(SCHEMAS[0], repeats=True)
    environment = EnvironmentDescription({"": ClassFacts({"add": add})})
    rows: list[dict[str, Any]] = [
        {"messages": SOLVED, "tools": SCHEMAS},
        {"messages": SOLVED, "tools": "other data"},
    ]
    table = build(rows, tool_tokenizer, limit=99, environment=environment)
    assert table.texts == ("<tools>add;<user>(4+8)*2=<eos><assistant>",) * 2


def test_columns_of_other_data_with_the_name_of_tools_are_refused(
    tool_tokenizer: TextTokenizer, tokenizer: TextTokenizer
) -> None:
    for tools, why in {
        "hammer": "a text that is no JSON",
        "7": "tools is of type int",
        ("hammer",): "a text that is no JSON",
        ('{"name": "add"}',): "an entry that is a map with the entries name",
    }.items():
        row = {"prompt": "1=", "tools": tools if isinstance(tools, str) else list(tools)}
        with pytest.raises(InvalidRow, match=f"row 0: .*{why}.*allowed a list of .*rename the co"):
            build([row], tool_tokenizer, LAST, limit=None, promptField="prompt", answerField=None)
        build([row], tokenizer, LAST, limit=None, promptField="prompt", answerField=None)


NO_ARGUMENTS = {"type": "function", "function": {"name": "add", "arguments": "a=4"}}


@pytest.mark.parametrize(
    ("message", "why"),
    [
        ({**calling(), "tool_calls": "add(1,2)"}, "whose tool_calls is a text; allowed a list"),
        (calling({"function": {"arguments": {}}}), "a call that is a map with the entries funct"),
        ({**calling(), "tool_calls": ["add(1,2)"]}, "a call that is a text; allowed .*function"),
        (calling(NO_ARGUMENTS), "a call of 'add' whose arguments are no JSON"),
        (calling(call("add", a=float("nan"))), "a call of 'add' whose arguments are no JSON"),
        (calling(call("add", a="\ud800")), "a call of 'add' whose arguments are no JSON"),
        (calling({**call("add"), "function": {"name": "add", "arguments": [1]}}), "of type list;"),
        (said("assistant", "", function_call=ADD), "has function_call, .* put it into tool_calls"),
        (said("assistant", " "), "an answer of messages is an empty text"),
    ],
)
def test_calls_that_cannot_be_read_are_refused_by_name(
    tool_tokenizer: TextTokenizer, message: dict[str, Any], why: str
) -> None:
    messages = [SOLVED[0], message, *SOLVED[2:]]
    with pytest.raises(InvalidRow, match=f"row 0: .*{why}"):
        build([{"messages": messages}], tool_tokenizer, limit=99)


DROPS_CALLS = TEMPLATE.replace("m.tool_calls or []", "[]")
DROPS_WORDS = TEMPLATE.replace('(m.content or "")', '("" if m.tool_calls else m.content)')
ENDS_LATE = TEMPLATE.replace(
    "{{- eos_token }}", "{{- '' if m.tool_calls and loop.last else eos_token }}"
)
# Opens the last answer with an empty block, as Qwen3's does.
OPENS = TEMPLATE.replace(
    '+ (m.content or "")',
    '+ ("[]" if loop.last and m.role == "assistant" else "") + (m.content or "")',
)


@pytest.mark.parametrize(
    ("template", "why"),
    [
        (DROPS_CALLS, "the chat template leaves out calls of tools; use the tokenizer of a model"),
        (DROPS_WORDS, r"leaves out a part of the answer: got '\\nadd"),
        (ENDS_LATE, "writes no end token behind calls of tools: .*rollout.endTokens"),
        (OPENS, "renders answer 1 of 3 in another way if messages follow"),
    ],
    ids=["no calls", "no words", "no end token", "another begin"],
)
def test_a_template_that_cannot_write_the_conversation_is_refused(
    tmp_path: Path, template: str, why: str
) -> None:
    tokenizer = tokenizer_with(template, tmp_path)
    with pytest.raises(InvalidRow, match=f"row 0: the chat template .*{why}|row 0: {why}"):
        build([{"messages": SOLVED}], tokenizer, limit=99)


def test_a_text_in_arguments_or_words_ends_no_turn(tool_tokenizer: TextTokenizer) -> None:
    """Where a turn ends is decided by the template, not by what stands in it."""
    messages = [SOLVED[0], calling(call("add", a="<eos>"), content="<eos>b"), *SOLVED[4:]]
    table = build([{"messages": messages}], tool_tokenizer, limit=99)
    assert trained(table, tool_tokenizer)[0] == (True, '<eos>b\nadd(a="<eos>")<eos>')


def test_pairs_may_differ_in_calls_alone(tool_tokenizer: TextTokenizer) -> None:
    row = {"chosen": SOLVED[:2], "rejected": [SOLVED[0], calling(MULTIPLY, content="sum")]}
    table = build([row], tool_tokenizer, preferences={}, limit=99)
    for tokens, name in ((table.answers, "add(a=4,b=8)"), (table.rejected, "mul(a=12,b=2)")):
        assert tool_tokenizer.text_of(runs(tokens)[0]) == f"sum\n{name}<eos>"
    row["rejected"] = row["chosen"]
    with pytest.raises(InvalidRow, match="chosen and rejected are equal"):
        build([row], tool_tokenizer, preferences={}, limit=99)
