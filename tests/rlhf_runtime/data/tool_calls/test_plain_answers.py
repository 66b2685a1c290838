"""Conversations with tools without a chat template."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.character_tokenizer import write_tokenizer
from rlhf_runtime.data.errors import ChatTemplateUnusable
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.tool_call import MalformedCall, ToolCall

from ..small_tokenizers import write_joining_tokenizer
from .conversations import encode, schema
from .tool_templates import HERMES, write_byte_tokenizer

TOOLS = [schema("add", ["a", "b"], a={"type": "integer"}, b={"type": "integer"})]
ADD = ToolCall("add", {"a": 12, "b": 30})


@pytest.fixture
def tokenizer(tmp_path: Path) -> TextTokenizer:
    """The character tokenizer of the examples."""
    write_tokenizer(tmp_path)
    return TextTokenizer(tmp_path)


def tokens_of(tokenizer: TextTokenizer, text: str) -> NDArray[np.int32]:
    return np.asarray(encode(tokenizer, text), np.int32)


def test_a_calculator_answers_a_model_of_characters(tokenizer: TextTokenizer) -> None:
    dialogue = ToolDialogue(tokenizer, TOOLS)
    assert dialogue.format is ToolFormat.PYTHON and dialogue.schemas == []
    prompt, turn, final = (
        tokens_of(tokenizer, text) for text in ("12+30=", "add(12,30)<eos>", "42<eos>")
    )
    assert dialogue.calls(turn) == [ADD]
    answer = dialogue.answer_tokens(turn, [ADD], ["42"])
    whole = "12+30=add(12,30)<eos>\n42\n42<eos>"
    assert [*prompt, *turn, *answer, *final] == encode(tokenizer, whole)
    assert dialogue.calls(final) == []


@pytest.mark.parametrize(
    ("turn", "answers", "text"),
    [
        ("add(1,2)", ["3"], "\n3\n"),
        ("add(1,2)\n", ["3"], "\n3\n"),
        ("add(1,2)<eos>", ["3", "no\nsum"], "\n3\nno\nsum\n"),
        ("", ["3"], "\n3\n"),
        ("add(1,2)<eos>", [""], "\n\n"),
        ("add(1,2)<eos>", ["<eos>"], "\n< eos>\n"),
    ],
)
def test_answers_stand_on_lines_of_their_own(
    tokenizer: TextTokenizer, turn: str, answers: list[str], text: str
) -> None:
    dialogue = ToolDialogue(tokenizer, TOOLS, ToolFormat.PYTHON)
    calls = [ADD] * len(answers)
    tokens = dialogue.answer_tokens(tokens_of(tokenizer, turn), calls, answers)
    assert tokenizer.text_of(tokens.tolist()) == text
    assert tokens.dtype == np.int32


def test_the_model_can_read_what_is_wrong(tokenizer: TextTokenizer) -> None:
    dialogue = ToolDialogue(tokenizer, TOOLS)
    for text in ("add(1)", "add(1,2,3)", "add(1,x)", "add(1,'x')", "add(a=1,c=2)", "add(1;2)"):
        (call,) = dialogue.calls(tokens_of(tokenizer, text))
        assert isinstance(call, MalformedCall)
        assert tokenizer.text_of(encode(tokenizer, call.problem)) == call.problem


def test_a_tokenizer_that_joins_words_gets_lines_without_blanks(tmp_path: Path) -> None:
    write_joining_tokenizer("a space before the first part", tmp_path)
    (tmp_path / "chat_template.jinja").unlink()
    tokenizer = TextTokenizer(tmp_path)
    # Its characters are few: those of a tool called ab, without parentheses.
    with pytest.raises(ChatTemplateUnusable, match="cannot write calls of tools"):
        ToolDialogue(tokenizer, [schema("ab")])


@pytest.mark.parametrize("name", ["Add", "summe_größe"])
def test_a_name_that_the_tokenizer_cannot_write_is_refused(
    tokenizer: TextTokenizer, name: str
) -> None:
    with pytest.raises(ChatTemplateUnusable, match=rf"got '.*<unk>.*' for '{name}\(,\)'"):
        ToolDialogue(tokenizer, [schema(name)])


@pytest.mark.parametrize("format", sorted(set(ToolFormat) - {ToolFormat.PYTHON}))
def test_other_formats_need_a_chat_template(tokenizer: TextTokenizer, format: ToolFormat) -> None:
    with pytest.raises(ChatTemplateUnusable, match=f"format {format} need a chat template"):
        ToolDialogue(tokenizer, TOOLS, format)


def test_a_chat_template_that_prompts_do_not_pass_is_not_used(tmp_path: Path) -> None:
    write_byte_tokenizer(tmp_path, HERMES)
    dialogue = ToolDialogue(TextTokenizer(tmp_path), TOOLS, uses_template=False)
    assert dialogue.format is ToolFormat.PYTHON


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"a": 12, "b": 30}, "add(12,30)<eos>"),
        ({"b": 30}, "add(b=30)<eos>"),
        ({}, "add()<eos>"),
    ],
)
def test_a_turn_that_is_written_with_a_call_names_what_follows_a_gap(
    tokenizer: TextTokenizer, arguments: dict[str, int], text: str
) -> None:
    turn = ToolDialogue(tokenizer, TOOLS).turn_with(ToolCall("add", arguments))
    assert turn.tolist() == encode(tokenizer, text)
