"""Rows with calls of tools: their tokens are those of generated conversations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_runtime.data.errors import InvalidRow
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.tool_call import ToolCall

from ...depth import examples
from .conversation_rows import ALL, build, runs, said
from .tool_rows import COLUMNS, SCHEMAS, TEMPLATE, answer, call, calling, tokenizer_with, trained

WRITTEN = [
    said("assistant", "add(4,8)"),
    answer("12"),
    said("assistant", "mul(12,2)\nadd(1,1)"),
    answer("24"),
    answer("2"),
    said("assistant", "24"),
]


def test_without_a_template_calls_are_text_and_answers_are_lines(tokenizer: TextTokenizer) -> None:
    row = {"prompt": "(4+8)*2=", "answer": WRITTEN}
    table = build([row], tokenizer, limit=99, **COLUMNS)
    assert table.texts == ("(4+8)*2=",)
    assert trained(table, tokenizer) == [
        (True, "add(4,8)<eos>"),
        (False, "\n12\n"),
        (True, "mul(12,2)\nadd(1,1)<eos>"),
        (False, "\n24\n2\n"),
        (True, "24<eos>"),
    ]
    weighted = [{**WRITTEN[0], "weight": 0}, *WRITTEN[1:]]
    table = build([{**row, "answer": weighted}], tokenizer, limit=99, **COLUMNS)
    assert trained(table, tokenizer)[0] == (False, "add(4,8)<eos>\n12\n")


@pytest.mark.parametrize(
    ("messages", "why"),
    [
        ([WRITTEN[0], said("user", "and?"), WRITTEN[5]], "a message of user and no chat template"),
        ([WRITTEN[0], WRITTEN[5]], "two messages of assistant one after the other"),
        (
            [calling(call("add", a=4, b=8)), *WRITTEN[1:]],
            "tool_calls and no chat template .* such as add",
        ),
        ([WRITTEN[0], answer("12"), said("assistant", "")], "an answer of answer is an empty text"),
        ([answer("12"), WRITTEN[5]], "with several that begin and end with one of the assistant"),
        ([{**WRITTEN[0], "weight": 2}, *WRITTEN[1:]], "a message with weight 2; allowed 0 or 1"),
    ],
)
def test_without_a_template_other_messages_are_refused(
    tokenizer: TextTokenizer, messages: list[Any], why: str
) -> None:
    with pytest.raises(InvalidRow, match=f"row 0: .*{why}"):
        build([{"prompt": "1=", "answer": messages}], tokenizer, limit=99, **COLUMNS)


WORDS = st.text("ab 12.", max_size=6).map(str.strip)
CALLS = st.builds(
    lambda name, a, b: ToolCall(name, {"a": a, "b": b}),
    st.sampled_from(["add", "mul"]),
    st.integers(-99, 10**6),
    st.integers(-99, 10**6),
)
# Among them texts of special tokens, which answers must not contain.
ANSWERS = st.text("12 \n<", max_size=5) | st.sampled_from(["<eos>", "a<eos>\n<pad>"])
ROUNDS = st.lists(
    st.lists(st.tuples(CALLS, ANSWERS), min_size=1, max_size=2).flatmap(
        lambda made: st.tuples(WORDS, st.just(made))
    ),
    min_size=1,
    max_size=3,
)
Rounds = Sequence[tuple[str, Sequence[tuple[ToolCall, str]]]]


@pytest.fixture(scope="module", params=[TEMPLATE, None], ids=["template", "plain"])
def either(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The character tokenizer, with a chat template and without one."""
    return tokenizer_with(request.param, tmp_path_factory.mktemp("tokenizer"))


@given(rounds=ROUNDS, last=WORDS.filter(bool))
@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
def test_the_tokens_are_those_of_a_generated_conversation(
    either: TextTokenizer, rounds: Rounds, last: str
) -> None:
    """Behind each turn are the tokens that a generated conversation has there, not trained on."""
    is_plain = either.chat_template is None
    messages: list[dict[str, Any]] = []
    for words, made in rounds:
        calls = [one for one, _ in made]
        lines = [f"{one.name}({one.arguments['a']},{one.arguments['b']})" for one in calls]
        written = calling(*(call(one.name, **one.arguments) for one in calls), content=words)
        plain = said("assistant", "\n".join([words, *lines]))
        messages += [plain if is_plain else written, *(answer(text) for _, text in made)]
    messages.append(said("assistant", last))
    table = build([{"prompt": "1=", "answer": messages}], either, ALL, 9999, **COLUMNS)
    (tokens,), (mask,) = runs(table.answers), runs(table.answers_mask)
    dialogue = ToolDialogue(either, SCHEMAS)
    at = 0
    for _, expected in rounds:
        length = next(n for n, token in enumerate(tokens[at:], 1) if token == either.eos_token_id)
        turn = np.asarray(tokens[at : at + length], np.int32)
        read = dialogue.calls(turn)
        assert read == [one for one, _ in expected], "the model's turn is read as its calls"
        behind = dialogue.answer_tokens(turn, read, [text for _, text in expected]).tolist()
        assert tokens[at + length :][: len(behind)] == behind
        assert mask[at:][: length + len(behind)] == [1] * length + [0] * len(behind)
        at += length + len(behind)
    assert either.text_of(tokens[at:]) == f"{last}<eos>" and set(mask[at:]) == {1}
