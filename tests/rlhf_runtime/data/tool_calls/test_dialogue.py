"""Tokens between turns, with small templates of all formats."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.tool_call import ToolCall

from .conversations import TOOLS, Form, beginnings, check_conversation, rounds, words
from .rows import check_row, prompts
from .tool_templates import FAMILIES, Family, write_byte_tokenizer


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> tuple[str, Family]:
    return request.param, FAMILIES[request.param]


@pytest.fixture(scope="module")
def tokenizer(
    family: tuple[str, Family], tmp_path_factory: pytest.TempPathFactory
) -> TextTokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    write_byte_tokenizer(folder, family[1].template)
    return TextTokenizer(folder)


def test_the_format_is_recognised_by_what_the_template_writes(
    tokenizer: TextTokenizer, family: tuple[str, Family]
) -> None:
    assert ToolDialogue(tokenizer, TOOLS).format is family[1].format


@settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_prompts_and_rows_are_the_tokens_of_the_whole_conversation(
    tokenizer: TextTokenizer, family: tuple[str, Family], data: st.DataObject
) -> None:
    name, (_, _, writes_words, several) = family
    made = data.draw(rounds(writes_words, several))
    form = Form(arguments_as_text=name.startswith("deepseek"))
    check_conversation(tokenizer, data.draw(beginnings), made, form)
    # A row of the data that says the same has the same tokens.
    check_row(tokenizer, data.draw(prompts), made, data.draw(words), form)


CALLS = [
    ToolCall("search", {"query": "a b", "limit": 1, "tags": ["x"]}),
    ToolCall("add", {"a": 1.5, "b": -2}),
    ToolCall("now", {}),
]


@pytest.mark.parametrize("call", CALLS, ids=[call.name for call in CALLS])
def test_a_turn_that_is_written_with_a_call_is_read_back(
    tokenizer: TextTokenizer, family: tuple[str, Family], call: ToolCall
) -> None:
    dialogue = ToolDialogue(tokenizer, TOOLS)
    turn = dialogue.turn_with(call)
    assert int(turn[-1]) in tokenizer.end_token_ids
    (read,) = dialogue.calls(turn)
    assert isinstance(read, ToolCall) and (read.name, read.arguments) == (call.name, call.arguments)
