"""Conversations with tools, with the tokenizers and chat templates of widely used models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer

from rlhf_api.spec.conversation import ToolFormat
from rlhf_runtime.data.chat import TEMPLATE_DATE
from rlhf_runtime.data.errors import ChatTemplateUnusable, InvalidRow
from rlhf_runtime.data.tokenizer import TextTokenizer
from rlhf_runtime.data.tool_calls.dialogue import ToolDialogue
from rlhf_runtime.environments.tool_call import ToolCall

from ..real_tokenizers import chat_template, download
from .conversations import TOOLS, USER, Form, Round, beginnings, check_conversation, rounds, words
from .rows import check_row, prompts
from .tool_templates import DEEPSEEK_V3, DEEPSEEK_V31

pytestmark = pytest.mark.slow  # downloads 120 MB, once

# The tokenizer of Gemma 4 has these beside those of Gemma 3.
_GEMMA_4 = ("<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>')
_GEMMA_4 += ("<|tool_response>", "<tool_response|>", "<|channel>", "<channel|>", "<|think|>")


class Model(NamedTuple):
    """A tokenizer with a chat template."""

    tokenizer: str
    format: ToolFormat
    template: str | None = None
    """Of trl, or Jinja; None: the tokenizer's own."""
    ends: Sequence[str] = ()
    """End tokens beside that of the tokenizer."""
    special: Sequence[str] = ()
    """Tokens that the tokenizer lacks."""
    writes_words: bool = True
    several: bool = True
    form: Form = Form()
    keeps_system: bool = True
    """False if the template leaves out the system message when an answer follows."""
    keeps_turns: bool = True
    """False if the template writes the last turn in another way than earlier ones."""


NO_THINKING: Mapping[str, Any] = {"enable_thinking": False}
MODELS = {
    "qwen2.5": Model("qwen2_5", ToolFormat.HERMES),
    "qwen3": Model("qwen3", ToolFormat.HERMES, keeps_turns=False),
    "qwen3 thinking": Model("qwen3", ToolFormat.HERMES, form=Form(thinking=True)),
    "qwen3 no thinking": Model(
        "qwen3", ToolFormat.HERMES, form=Form(arguments=NO_THINKING), keeps_turns=False
    ),
    "qwen3 instruct": Model("qwen3", ToolFormat.HERMES, "qwen3_instruct_2507"),
    "qwen3.5": Model("qwen3", ToolFormat.QWEN_XML, "qwen3_5_think", form=Form(thinking=True)),
    "qwen3.5 no thinking": Model("qwen3", ToolFormat.QWEN_XML, "qwen3_5_nothink"),
    "mistral": Model("mistral_nemo", ToolFormat.MISTRAL, writes_words=False, keeps_system=False),
    "llama3.1": Model("llama3_1", ToolFormat.LLAMA, "llama3_1", writes_words=False, several=False),
    "llama3.2": Model("llama3_1", ToolFormat.LLAMA, "llama3_2", writes_words=False, several=False),
    "gemma4": Model(
        "gemma3",
        ToolFormat.GEMMA,
        "gemma4_v5",
        ("<turn|>", "<|tool_response>"),
        _GEMMA_4,
        writes_words=False,
    ),
    "gpt-oss": Model(
        "gptoss",
        ToolFormat.HARMONY,
        "gptoss",
        ("<|return|>", "<|call|>"),
        several=False,
        keeps_turns=False,
    ),
    "deepseek v3": Model(
        "deepseek_v3",
        ToolFormat.DEEPSEEK,
        DEEPSEEK_V3.replace("<e>", "<｜end▁of▁sentence｜>"),
        form=Form(arguments_as_text=True),
    ),
    "deepseek v3.1": Model(
        "deepseek_v3",
        ToolFormat.DEEPSEEK,
        DEEPSEEK_V31.replace("<e>", "<｜end▁of▁sentence｜>"),
        form=Form(arguments_as_text=True),
    ),
}


def write_folder(model: Model, folder: Path) -> TextTokenizer:
    """Write a model's folder as far as its tokenizer goes, and load it."""
    files = download(model.tokenizer)
    (folder / "tokenizer_config.json").symlink_to(files / "tokenizer_config.json")
    if model.special:
        tokenizer = Tokenizer.from_file(str(files / "tokenizer.json"))
        tokenizer.add_special_tokens([AddedToken(text, special=True) for text in model.special])
        tokenizer.save(str(folder / "tokenizer.json"))
    else:
        (folder / "tokenizer.json").symlink_to(files / "tokenizer.json")
    if model.template is not None:
        is_jinja = "{" in model.template
        text = model.template if is_jinja else chat_template(model.template)
        (folder / "chat_template.jinja").write_text(text)
    return TextTokenizer(folder, model.ends)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Model:
    return MODELS[request.param]


@pytest.fixture(scope="module")
def tokenizer(model: Model, tmp_path_factory: pytest.TempPathFactory) -> TextTokenizer:
    return write_folder(model, tmp_path_factory.mktemp("tokenizer"))


def test_the_format_is_recognised(tokenizer: TextTokenizer, model: Model) -> None:
    dialogue = ToolDialogue(tokenizer, TOOLS, arguments=model.form.arguments)
    assert dialogue.format is model.format


@settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_prompts_are_the_tokens_of_the_whole_conversation(
    tokenizer: TextTokenizer, model: Model, data: st.DataObject
) -> None:
    made = data.draw(rounds(model.writes_words, model.several))
    beginning = data.draw(beginnings)
    if not model.keeps_system:
        beginning = [message for message in beginning if message["role"] != "system"]
    check_conversation(tokenizer, beginning, made, model.form)


@pytest.mark.parametrize(
    "model", [name for name, model in MODELS.items() if model.keeps_turns], indirect=True
)
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_rows_have_the_tokens_of_generated_conversations(
    tokenizer: TextTokenizer, model: Model, data: st.DataObject
) -> None:
    made = data.draw(rounds(model.writes_words, model.several))
    prompt = data.draw(prompts) if model.keeps_system else [USER]
    check_row(tokenizer, prompt, made, data.draw(words), model.form)


@pytest.mark.parametrize(
    "model", [name for name, model in MODELS.items() if not model.keeps_turns], indirect=True
)
def test_rows_that_a_template_writes_in_another_way_later_are_refused(
    tokenizer: TextTokenizer, model: Model
) -> None:
    made = [Round("So:", [ToolCall("now", {})], ["Noon."])] * 2
    with pytest.raises(InvalidRow, match="the chat template renders .* in another way if"):
        check_row(tokenizer, [USER], made, "Noon.", model.form)


class FixedDate(datetime):
    """The date of our templates as today."""

    @classmethod
    def now(cls, tz: object = None) -> datetime:
        return TEMPLATE_DATE


def test_a_template_writes_tools_as_transformers_does(
    tokenizer: TextTokenizer, model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.utils import chat_template_utils

    assert tokenizer.chat_template is not None
    arguments = model.form.arguments
    prompt = tokenizer.chat_template.render([USER], tools=TOOLS, arguments=arguments)
    config = json.loads((tokenizer.folder / "tokenizer_config.json").read_text())
    file = tokenizer.folder / "chat_template.jinja"
    bos = config.get("bos_token")
    monkeypatch.setattr(chat_template_utils, "datetime", FixedDate)
    (expected,), _ = chat_template_utils.render_jinja_template(
        [[USER]],
        tools=TOOLS,
        chat_template=file.read_text() if file.exists() else config["chat_template"],
        add_generation_prompt=True,
        bos_token=bos["content"] if isinstance(bos, dict) else bos,
        **arguments,
    )
    assert prompt == expected


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Model("gemma3", ToolFormat.GEMMA), "ignores tools"),
        (Model("llama3_1", ToolFormat.LLAMA), "ignores tools"),
        (Model("deepseek_v3", ToolFormat.DEEPSEEK), "ignores tools"),
        (
            Model("deepseek_v3", ToolFormat.DEEPSEEK, "deepseek_r1_distill"),
            "ignores tools",
        ),
        (Model("qwen3", ToolFormat.HERMES, "glm4moe"), "no end token follows a call"),
    ],
    ids=["gemma3", "llama3.1", "deepseek v3", "r1", "glm4"],
)
def test_a_template_that_cannot_be_used_is_refused_by_name(
    tmp_path: Path, model: Model, reason: str
) -> None:
    with pytest.raises(ChatTemplateUnusable, match=f"the chat template .*{reason}"):
        ToolDialogue(write_folder(model, tmp_path), TOOLS)
