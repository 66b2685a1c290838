"""Prompts and answers of widely used tokenizers, against transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from rlhf_api.spec.data import OnInvalidRow, OnLongPrompt
from rlhf_api.spec.row_sources import DataSource
from rlhf_runtime.data.errors import InvalidRow
from rlhf_runtime.data.prompt_table import PromptTable
from rlhf_runtime.data.prompts import build_prompt_table
from rlhf_runtime.data.row_limits import RowLimits
from rlhf_runtime.data.source_setting import SourceSetting, Split
from rlhf_runtime.data.tokenizer import TextTokenizer

from .real_tokenizers import download

pytestmark = pytest.mark.slow  # downloads 75 MB, once
END_TOKENS: Mapping[str, list[int]] = {"qwen3": [], "llama3_1": [], "gemma3": [1, 106]}
"""End tokens that the model's generation_config.json names and its tokenizer does not."""

Messages = list[dict[str, str]]

USER = {"role": "user", "content": "Was ist 2 + 3?\n\n  Bitte mit  Begründung. 数学 🧮"}
SYSTEM = {"role": "system", "content": "Answer briefly."}
ANSWER = {"role": "assistant", "content": "5, because 2 + 3 = 5."}
PROMPTS: Mapping[str, Messages] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "turns": [SYSTEM, USER, ANSWER, {"role": "user", "content": "And 3 + 4?"}],
    "white space": [{"role": "user", "content": "  two spaces, a line \n"}],
    "special text": [{"role": "user", "content": "<|im_end|> </s> <|eot_id|> <end_of_turn>"}],
    "code": [{"role": "user", "content": "def f(x):\n\treturn x ** 2  # {{ x }} {% if %}"}],
}


@pytest.fixture(scope="module", params=sorted(END_TOKENS))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder as far as its tokenizer goes."""
    name: str = request.param
    folder = tmp_path_factory.mktemp(name)
    for file in download(name).iterdir():
        (folder / file.name).symlink_to(file)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": END_TOKENS[name]}))
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> TextTokenizer:
    """Ours."""
    return TextTokenizer(folder)


@pytest.fixture(scope="module")
def reference(folder: Path) -> Any:
    """That of transformers."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(folder)


def build(rows: Sequence[Any], tokenizer: TextTokenizer, **source: Any) -> PromptTable:
    limits = RowLimits(1000, 1000, OnInvalidRow.FAIL, OnLongPrompt.FAIL, 99)
    data = DataSource(path="rows.jsonl", **source)
    return build_prompt_table(rows, data, SourceSetting(Split.TRAIN), tokenizer, limits, iter)


def template_tokens(reference: Any, messages: Messages, *, is_answered: bool) -> list[int]:
    tokens: list[int] = reference.apply_chat_template(
        messages, add_generation_prompt=not is_answered, return_dict=False
    )
    return tokens


@pytest.mark.parametrize("name", PROMPTS)
def test_a_prompt_has_the_tokens_of_transformers(
    tokenizer: TextTokenizer, reference: Any, name: str
) -> None:
    table = build([{"prompt": PROMPTS[name]}], tokenizer)
    (prompt,) = (run.tolist() for run in table.prompts.runs())
    assert prompt == template_tokens(reference, PROMPTS[name], is_answered=False)


@pytest.mark.parametrize("name", PROMPTS)
def test_a_text_without_a_template_has_the_tokens_of_transformers(
    tokenizer: TextTokenizer, reference: Any, name: str
) -> None:
    text = PROMPTS[name][-1]["content"]
    table = build([{"prompt": text}], tokenizer, chat_template="Never")
    (prompt,) = (run.tolist() for run in table.prompts.runs())
    assert prompt == reference(text)["input_ids"]
    assert tokenizer.text_of(reference(text, add_special_tokens=False)["input_ids"]) == text


@pytest.mark.parametrize("name", ["user", "system", "turns"])
def test_prompt_and_answer_are_the_tokens_of_the_whole_conversation(
    tokenizer: TextTokenizer, reference: Any, name: str
) -> None:
    messages = [*PROMPTS[name], ANSWER]
    table = build(
        [{"messages": messages}], tokenizer, prompt_field="messages", answer_field="messages"
    )
    (prompt,), (answer,) = (
        [run.tolist() for run in column.runs()] for column in (table.prompts, table.answers)
    )
    whole = template_tokens(reference, messages, is_answered=True)
    tokens = [*prompt, *answer]
    assert tokens == whole[: len(tokens)]
    assert answer[-1] in tokenizer.end_token_ids
    # Only white space follows the end token.
    assert not tokenizer.text_of(whole[len(tokens) :]).strip()
    assert ANSWER["content"] in tokenizer.text_of(answer)
    assert tokenizer.text_of(prompt).rstrip().endswith(("assistant", "model", "<|end_header_id|>"))


def test_a_message_that_the_template_refuses_is_an_invalid_row(tokenizer: TextTokenizer) -> None:
    with pytest.raises(InvalidRow):
        build([{"prompt": [{"role": "user", "content": None}]}], tokenizer)


def qwen3(folder: Path, **changes: object) -> tuple[TextTokenizer, Any]:
    """Our tokenizer and that of transformers, with changes of its configuration."""
    from transformers import AutoTokenizer

    files = download("qwen3")
    (folder / "tokenizer.json").symlink_to(files / "tokenizer.json")
    config = json.loads((files / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**config, **changes}))
    return TextTokenizer(folder), AutoTokenizer.from_pretrained(folder)


SHORT = [{"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}]
CONVERSATIONS = {"prompt_field": "messages", "answer_field": "messages"}
EMPTY_BLOCK = "<think>\n\n</think>\n\n"
IM_END = 151645


def texts_of(table: PromptTable, tokenizer: TextTokenizer) -> tuple[str, str]:
    (prompt,), (answer,) = (
        [tokenizer.text_of(run.tolist()) for run in column.runs()]
        for column in (table.prompts, table.answers)
    )
    return prompt, answer


@pytest.mark.parametrize(
    ("arguments", "begin", "answer"),
    [
        ({}, "", f"{EMPTY_BLOCK}4<|im_end|>"),
        ({"enable_thinking": True}, "", f"{EMPTY_BLOCK}4<|im_end|>"),
        ({"enable_thinking": False}, EMPTY_BLOCK, "4<|im_end|>"),
    ],
)
def test_thinking_of_qwen3_is_switched_by_an_argument_of_the_template(
    tmp_path: Path, arguments: dict[str, bool], begin: str, answer: str
) -> None:
    tokenizer, reference = qwen3(tmp_path)
    source = {**CONVERSATIONS, "chat_template_arguments": arguments}
    table = build([{"messages": SHORT}], tokenizer, **source)
    prompt = f"<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n{begin}"
    assert texts_of(table, tokenizer) == (prompt, answer)
    (tokens,), (trained,) = table.prompts.runs(), table.answers.runs()
    expected = reference.apply_chat_template(
        SHORT[:1], add_generation_prompt=True, return_dict=False, **arguments
    )
    assert tokens.tolist() == expected
    whole = reference.apply_chat_template(SHORT, return_dict=False, **arguments)
    both = [*tokens.tolist(), *trained.tolist()]
    assert both == whole[: len(both)] and both[-1] == IM_END


def test_a_base_model_of_qwen3_is_trained_to_end_as_its_template_does(tmp_path: Path) -> None:
    tokenizer, reference = qwen3(tmp_path, eos_token="<|endoftext|>")
    assert (tokenizer.template_end, tokenizer.end_texts()) == (
        IM_END,
        ["<|endoftext|>", "<|im_end|>"],
    )
    table = build([{"messages": SHORT}], tokenizer, **CONVERSATIONS)
    (tokens,), (trained,) = table.prompts.runs(), table.answers.runs()
    whole = reference.apply_chat_template(SHORT, return_dict=False)
    assert [*tokens.tolist(), *trained.tolist()] == whole[:-1]
    assert tokenizer.text_of(whole[-2:]) == "<|im_end|>\n"
